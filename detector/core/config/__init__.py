"""Every option once (schema.py), what sets them (levels.py), their texts (reference.py)."""
