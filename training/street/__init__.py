"""The renderer of street crossings with known boxes, used by ``training/make_video``."""
