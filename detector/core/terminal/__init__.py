"""Prints results of a run and of the small commands."""
