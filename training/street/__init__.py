"""The renderer of street crossings with known boxes; ``training/make_video`` films them."""
