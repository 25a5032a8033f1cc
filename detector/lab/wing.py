"""What measuring adds to the program: its commands, in commands/, and a look at finished runs."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds(closing=("detector.lab.audit.finished:closing_line",))
