"""Prints the results of the commands."""
