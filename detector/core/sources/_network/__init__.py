"""Open addresses with FFmpeg, keep secrets from other hosts, and explain FFmpeg's errors."""
