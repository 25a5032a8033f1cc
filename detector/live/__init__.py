"""Live cameras: sources, recordings, events and their receivers, and the page."""
