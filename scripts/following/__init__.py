"""What scripts/track_check measures on footage."""
