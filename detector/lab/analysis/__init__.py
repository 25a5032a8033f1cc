"""Turn a session's figures into facts, with pure functions; facts check their own sums."""
