"""Every option once (schema.py), and the levels that set them (levels.py)."""
