"""Raw outputs of one picture -> candidates in network pixels. One file per head layout; no thread, no clock."""
