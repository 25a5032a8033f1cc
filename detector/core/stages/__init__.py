"""Pure functions on arrays. They know neither threads nor clocks."""
