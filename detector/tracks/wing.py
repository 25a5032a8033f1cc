"""What tracks add to the program: the stage ``track``, in stages/."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds(tracker="bytetrack")
