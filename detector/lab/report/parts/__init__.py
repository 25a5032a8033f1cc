"""The parts of the report, a file for each kind; a new one is found by its list ``PARTS``."""
