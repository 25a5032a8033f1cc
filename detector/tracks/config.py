"""The options of tracks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from detector.core import wings
from detector.core.config import option

TRACKER = wings.default_tracker()


def _trackers() -> Sequence[str]:
    return tuple(wings.find_files("trackers"))


@dataclass(frozen=True, slots=True)
class TrackingConfig:
    """If infer_every, smooth or zones is set, a tracker is turned on."""

    title: ClassVar = "Tracks"
    after: ClassVar = "selection"
    track: str | None = option(
        None,
        f"Give each object a persistent id, by this tracker: {{choices}}; default: {TRACKER}.",
        "T",
        choices=_trackers,
        bare=TRACKER,
        short="Give each object a persistent id",
        common=True,
    )
    infer_every: int | None = option(
        None,
        "Infer only every Nth frame. In between, tracks move the boxes, which are drawn dashed and "
        "marked in the outputs. Turns on --track. 1 to 1000.",
        "N",
        at_least=1,
        at_most=1000,
        short="Infer every Nth frame; tracks move the boxes",
    )
    smooth: bool = option(
        False,
        "Draw steady boxes: filtered along their tracks, and dashed for up to half a second if "
        "one is missed. Files of detections stay unfiltered. Turns on --track.",
        short="Draw steady boxes; detections stay unfiltered",
    )
    trails: str | None = option(
        None,
        "Draw the path of each track over the last seconds, such as 2s or 2.",
        "S",
        short="Draw each track's path of the last S seconds",
    )
    zones: str | None = option(
        None,
        "Count objects at the lines and in the zones of this YAML file. Turns on --track. "
        "`detect-video zones in.mp4` writes a template.",
        "FILE",
        short="Count objects at the lines and zones of a YAML",
        also="Mapping[str, Any]",
    )

    def __post_init__(self) -> None:
        needs_tracks = self.infer_every is not None or self.smooth or self.zones is not None
        if self.track is None and needs_tracks:
            object.__setattr__(self, "track", TRACKER)
