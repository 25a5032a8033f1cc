"""What a run leaves on disk, read and written in one place."""
