"""The parts of the report. The list ``PARTS`` of each file here adds its parts."""
