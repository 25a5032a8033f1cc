"""The document of ``tune --json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detector.core.session.measured import Interval

SCHEMA = 1
Settings = dict[str, Any]  # option -> value, where different from the run's
# Treatments of the video, the least loss first.
AS_ASKED, LARGER, SUBTITLES, NO_VIDEO = (
    "as asked",
    "a larger file",
    "boxes as subtitles",
    "no video",
)
VIDEO = (AS_ASKED, LARGER, SUBTITLES, NO_VIDEO)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Some rounds of some settings. ``frames``: of the source, in all rounds. ``fps``: of these
    frames, end to end, the median; null where ``error`` says why. ``agreement``: with the
    detections of fp32 on all of them, 0..1; null where nothing tells.
    """

    settings: Settings
    frames: int
    fps: float | None = None
    agreement: float | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """``settings``: of the fastest, empty where the defaults stand. ``before`` and ``after``: FPS
    end to end of the defaults and of ``settings``, in rounds by turns; ``after`` is null where
    nothing was worth a comparison. ``ratio``: the median over rounds, with the lowest and highest.
    ``video_bytes_ratio``: of the files that both wrote. ``rounds``: of that comparison. ``file``:
    what -o wrote; ``kept``: what --use wrote into, for sources of this ``input_kind``.

    With --target, ``settings`` are the cheapest that reach ``target_fps`` in every round, or where
    none do (``reached`` false) the fastest. ``frames_share``: of the frames that have detections.
    ``video``: what becomes of it. ``ceilings``: FPS where something costs nothing. ``command``:
    what to type.
    """

    schema: int = SCHEMA
    model: str
    engine: str
    precision: str
    source: str
    seconds: float
    floor: float
    rounds: int = 0
    settings: Settings
    before: Interval
    after: Interval | None = None
    ratio: Interval | None = None
    agreement: float | None = None
    video_bytes_ratio: float | None = None
    target_fps: float | None = None
    reached: bool | None = None
    frames_share: float = 1.0
    video: str = AS_ASKED
    ceilings: Mapping[str, float] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    file: str | None = None
    kept: str | None = None
    input_kind: str | None = None
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
