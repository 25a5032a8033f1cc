"""Commands of scripts/bench, and measurements of other scripts."""
