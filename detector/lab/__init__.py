"""Measure runs: profiles, comparisons and accuracy, and reports of them."""
