"""Reading and writing all that a run leaves on disk."""
