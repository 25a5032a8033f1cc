"""What a run with cameras prints."""
