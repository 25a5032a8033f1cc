"""``batch``: a resumable job over many videos. ARCHITECTURE.md beside this file lists its rooms."""
