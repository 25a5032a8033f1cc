"""A rendered street crossing with known boxes: what ``scripts/make_video`` films."""
