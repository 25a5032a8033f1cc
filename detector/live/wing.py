"""Declares what the wing of cameras adds to the program."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds(
    sources={"live": "detector.live.sources:LiveSource"},
    guest="detector.live.guest:Cameras",
    options={
        "live": "detector.live.config:LiveConfig",
        "record": "detector.live.config:RecordConfig",
        "events": "detector.live.config:EventsConfig",
        "page": "detector.live.config:PageConfig",
    },
    sections=("detector.live.report:cameras",),
)
