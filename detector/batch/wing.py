"""Declare the wing of jobs over many videos: it adds one command, in commands/."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds()
