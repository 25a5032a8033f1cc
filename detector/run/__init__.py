"""One run: options become objects (wire.py), the loop runs, outputs and session are written (detect.py)."""
