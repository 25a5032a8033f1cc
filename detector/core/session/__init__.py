"""Read and write all files that a run leaves on disk."""
