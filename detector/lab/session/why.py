"""What ``why`` prints with --json: single frames beside the median frame, and what made them
slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SCHEMA = 1


@dataclass(frozen=True)
class WhyPart:
    """A call of ``stage``, or the wait before it (``waits``, with the ``cause`` as the critical
    path names them, and the call that it ``waited_for``: stage and number). ``median_ms``: of the
    same part over all frames. ``cpu_ms``, ``ready_ms`` and ``blocked_ms``: on a core, waiting for
    one, and neither; null where neither the spans nor moments tell. ``library_cpu_ms``: what the
    engine's own threads used for an inference."""

    stage: str
    waits: bool
    ms: float
    median_ms: float
    cause: str | None = None
    waited_for: str | None = None
    cpu_ms: float | None = None
    ready_ms: float | None = None
    blocked_ms: float | None = None
    library_cpu_ms: float | None = None


@dataclass(frozen=True)
class WhyCause:
    """``name``: gc, core, disk, boxes, key frame, clock, work, others (used most of the cores, and
    nothing else tells) or unknown. ``stage`` and ``frame``:
    the call that took longer than its stage does, by ``excess_ms``; the slow frame may have waited
    for another one's. In the infer stage ``frame`` is the first of the batch. ``explains_ms``: how
    much of that the cause accounts for."""

    name: str
    stage: str
    frame: int
    excess_ms: float
    explains_ms: float
    text: str


@dataclass(frozen=True)
class WhyFrame:
    """``key``: whether it is a key frame of the source. ``faults``: page faults, and those from
    the disk, while it was under way; ``mhz``: the cores' mean clock then. Null: not known."""

    frame: int
    ms: float
    boxes: int | None
    key: bool | None
    faults: int | None
    disk_faults: int | None
    mhz: float | None
    cause: WhyCause
    parts: Sequence[WhyPart]


@dataclass(frozen=True, kw_only=True)
class Why:
    """``median_ms``: of a frame, from the start of its read to the end of its last stage.
    ``absent``: what this session does not tell, and what to type for it."""

    schema: int = SCHEMA
    run: str
    frames: Sequence[WhyFrame]
    median_ms: float
    median_boxes: float | None
    median_mhz: float | None
    recorded: int
    absent: Mapping[str, str]
