"""A rendered street crossing with known boxes: what ``training/make_video`` films."""
