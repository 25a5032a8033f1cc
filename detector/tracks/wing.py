"""Declare the wing of tracks, which adds the stages in ``stages/``."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds(tracker="bytetrack")
