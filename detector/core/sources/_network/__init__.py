"""How FFmpeg opens an address, what it keeps from other hosts, and what its errors mean."""
