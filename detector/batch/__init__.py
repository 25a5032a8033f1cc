"""``batch``: a resumable job over many videos. ARCHITECTURE.md in this folder lists its parts."""
