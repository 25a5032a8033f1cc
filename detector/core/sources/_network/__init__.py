"""How FFmpeg opens an address, what it must not send to other hosts, and what its errors mean."""
