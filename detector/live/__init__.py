"""What becomes of a camera's detections: rows by day, recordings, events and their receivers."""
