"""The document of ``tune --json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detector.core.session.measured import Interval

SCHEMA = 1
Settings = dict[str, Any]  # option -> value, for options that differ from the defaults
# What happens to the output video, the least loss first.
AS_ASKED, LARGER, SUBTITLES, NO_VIDEO = (
    "as asked",
    "a larger file",
    "boxes as subtitles",
    "no video",
)
VIDEO = (AS_ASKED, LARGER, SUBTITLES, NO_VIDEO)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Some rounds with the same settings. ``frames``: number of frames in all rounds. ``fps``: the
    median of ``rounds``, end to end; null if the trial failed (``error``). ``agreement``: agreement
    of the detections with fp32's, 0 to 1; null if unknown.
    """

    settings: Settings
    frames: int
    fps: float | None = None
    rounds: tuple[float, ...] = ()
    agreement: float | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """``settings``: the fastest; empty if these are the defaults. ``before`` and ``after``:
    end-to-end FPS of the defaults and of ``settings``, whose runs alternated for ``rounds``.
    ``after`` is null if no settings were worth this comparison. ``ratio``: after / before, as
    median, lowest and highest round. ``video_bytes_ratio``: size of the video, after / before.
    ``file``: what -o wrote. ``kept``: the file that --use wrote, for sources of ``input_kind``.

    With --target, ``settings`` are the cheapest that reach ``target_fps`` in every round, or the
    fastest if none do (``reached`` is false). ``frames_share``: share of frames that are processed.
    ``video``: what happens to the video. ``ceilings``: part of the run -> FPS without it.
    ``command``: what to type.
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
