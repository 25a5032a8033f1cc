"""``batch``: a job over many videos, which is resumed where it stopped. ARCHITECTURE.md beside this
file lists its rooms."""
