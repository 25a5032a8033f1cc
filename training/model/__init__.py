"""Training and evaluation of the default model."""
