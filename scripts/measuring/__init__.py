"""Commands of scripts/bench that need a file of their own."""
