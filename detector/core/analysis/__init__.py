"""Describes one run: its summary, its verdict and what to do next. Pure functions."""
