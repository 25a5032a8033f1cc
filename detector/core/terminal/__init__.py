"""Print the results of a run and of small commands."""
