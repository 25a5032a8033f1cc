"""Terminal output of a run with cameras."""
