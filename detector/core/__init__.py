"""The core of the program: it processes one source and writes the outputs. All wings use it."""

__version__ = "0.2.0"
__address__ = "https://github.com/detect-video/detect-video"
