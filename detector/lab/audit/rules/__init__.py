"""The rules of ``audit``, a file for each kind of mistake."""
