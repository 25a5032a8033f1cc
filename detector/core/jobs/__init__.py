"""The jobs of commands that are more than a run, one module or folder each."""
