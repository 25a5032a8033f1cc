"""Every option once (schema.py), the levels that set them (levels.py), texts (reference.py)."""
