"""Declares what the wing of cameras adds to the program."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds(
    sources={"live": "detector.live.sources:LiveSource"},
    guest="detector.live.guest:Cameras",
    sections=("detector.live.report:cameras",),
)
