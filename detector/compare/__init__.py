"""``detect-video compare``: the same frames through several engines, precisions and batches, turn by turn."""
