"""The terminal output of a run with cameras."""
