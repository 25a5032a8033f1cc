"""What ``tune`` prints with --json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detector.core.session.measured import Interval

SCHEMA = 1
Settings = dict[str, Any]  # option -> value, of those that differ from the run's own


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One short run. ``fps``: end to end, null where ``error`` says why. ``agreement``: with the
    detections of fp32 on the same frames, 0..1; null where nothing tells.
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
    file: str | None = None
    kept: str | None = None
    input_kind: str | None = None
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
