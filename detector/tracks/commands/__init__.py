"""The command ``zones``."""
