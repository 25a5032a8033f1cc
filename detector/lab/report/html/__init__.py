"""How the page of a report is drawn: its frame, its first screen, tables and drawings."""
