"""Measurements of scripts/track_check on real and rendered footage."""
