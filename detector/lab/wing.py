"""What measuring adds to the program: its commands, in commands/."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds()
