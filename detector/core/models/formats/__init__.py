"""The front ends: one module or folder for each kind of model file."""
