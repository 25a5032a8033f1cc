"""Facts from the spans of a run (activities, critical path), and from alternating runs."""
