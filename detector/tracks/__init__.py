"""The wing of tracks: objects that keep their identity from frame to frame."""
