"""A session's figures -> facts. Pure functions; every fact checks its own sums."""
