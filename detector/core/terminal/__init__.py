"""What a run and the small commands print."""
