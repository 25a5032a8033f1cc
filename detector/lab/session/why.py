"""The document of ``why --json``: slow frames compared with the median frame, and their causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SCHEMA = 1


@dataclass(frozen=True)
class WhyPart:
    """A call of ``stage`` or, if ``waits``, the wait before this call. A wait's ``cause`` is named
    as in the critical path; ``waited_for`` is the stage and number of the call that it waited for.
    ``median_ms``: median time of this part over all frames. ``cpu_ms``, ``ready_ms``,
    ``blocked_ms``: times on a core, waiting for a core, and blocked; null if unknown.
    ``library_cpu_ms``: CPU time of the engine's threads for an inference."""

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
    """``name``: gc, core, disk, boxes, key frame, clock, work, others (other programs used most of
    the cores and no other cause is known) or unknown. ``stage`` and ``frame``: the call that took
    ``excess_ms`` longer than its stage's median. This call may belong to another frame, if the
    slow frame waited for it. For infer, ``frame`` is the first of the batch. ``explains_ms``: the
    part of the excess that the cause explains."""

    name: str
    stage: str
    frame: int
    excess_ms: float
    explains_ms: float
    text: str


@dataclass(frozen=True)
class WhyFrame:
    """``key``: whether this is a key frame of the source. ``faults``: page faults while the frame
    was processed; ``disk_faults``: how many read from disk. ``mhz``: mean clock of the cores in
    this time. Each is null if unknown."""

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
    """``median_ms``: median time from the start of a frame's read to the end of its last stage.
    ``absent``: fact that the session lacks -> how to record it, or why it is unknown."""

    schema: int = SCHEMA
    run: str
    frames: Sequence[WhyFrame]
    median_ms: float
    median_boxes: float | None
    median_mhz: float | None
    recorded: int
    absent: Mapping[str, str]
