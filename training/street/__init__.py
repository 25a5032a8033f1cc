"""The renderer of street crossings whose boxes are known; ``training/make_video`` films them."""
