"""The measurements of scripts/track_check on footage."""
