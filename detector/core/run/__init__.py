"""One run. Options become objects, the loop runs, and outputs and session are written."""
