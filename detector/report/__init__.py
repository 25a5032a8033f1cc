"""Facts -> text. Computes nothing."""
