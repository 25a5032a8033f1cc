"""The documents of the lab, beside those of a run."""
