"""The program itself: one source through the loop to its outputs, and what every wing stands on."""

__version__ = "0.2.0"
__address__ = "https://github.com/detect-video/detect-video"
