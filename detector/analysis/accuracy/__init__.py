"""Matching detections with labels or with each other, and average precision."""
