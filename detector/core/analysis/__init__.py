"""What one run says of itself: its summary, its verdict and what to do next. Pure functions."""
