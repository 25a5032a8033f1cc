"""The program itself: one source through the loop to its outputs. Every wing builds on it."""

__version__ = "0.2.0"
__address__ = "https://github.com/detect-video/detect-video"
