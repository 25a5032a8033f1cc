"""The frame loops, plain and threaded. They import no source, engine or sink."""
