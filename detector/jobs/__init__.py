"""What a command does beyond a run: build, compare, doctor, evaluate, infer_raw, models, profile."""
