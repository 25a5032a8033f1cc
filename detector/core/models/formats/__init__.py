"""Front ends: one module or folder for each kind of model file, found by listing this folder."""
