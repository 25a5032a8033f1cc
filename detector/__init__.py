"""detect-video: find objects in a video, and see where every millisecond went."""
