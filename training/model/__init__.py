"""Everything that training and evaluating the default model needs."""
