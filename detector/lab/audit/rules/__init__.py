"""The rules of ``audit``, one file for each kind of mistake."""
