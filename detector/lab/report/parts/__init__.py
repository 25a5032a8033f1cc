"""The parts of the report. Each file lists the parts that it adds in ``PARTS``."""
