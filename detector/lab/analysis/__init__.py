"""Pure functions that turn a session's figures into facts, and check that sums of facts agree."""
