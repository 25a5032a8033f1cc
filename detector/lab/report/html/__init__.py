"""Draw the page of a report: its first screen, tables and figures."""
