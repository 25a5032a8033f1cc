"""Objects that keep their identity from frame to frame: the wing of tracks."""
