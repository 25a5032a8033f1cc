"""Analyse a run: its summary, its verdict and its tables. Pure functions."""
