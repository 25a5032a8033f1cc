"""Render facts as text, tables and HTML. Nothing is computed here."""
