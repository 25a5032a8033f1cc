"""The program itself: it runs one source through the loop to its outputs. All wings use it."""

__version__ = "0.2.0"
__address__ = "https://github.com/detect-video/detect-video"
