"""The stages of this wing: one file is one stage."""
