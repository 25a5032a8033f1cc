"""Recordings of cameras: files of N minutes, or clips; annotated video, or copied packets."""
