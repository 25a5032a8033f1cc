"""Parts of scripts/bench that are longer than a command."""
