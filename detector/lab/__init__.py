"""Where the milliseconds go: profiles, comparisons, accuracy, and the reports of them."""
