"""The sinks of this wing: one file is one output of ``--zones``."""
