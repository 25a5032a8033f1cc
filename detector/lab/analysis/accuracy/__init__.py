"""Detections held against labels (average precision) and against each other (agreement)."""
