"""The command ``batch``."""
