"""What jobs over many videos add to the program: their command, in commands/."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds()
