"""The document of ``compare --where --json``: the first stage where two configurations differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = 1
Stage = Literal["decode", "letterbox", "input", "graph", "outputs", "candidates", "nms", "annotate"]


@dataclass(frozen=True)
class StageDifference:
    """One stage. Both sides get the same input, from A.

    ``what``: the tensor or picture that was compared. ``max``, ``rms``: size of the difference.
    ``relative``: ``rms`` / the standard deviation of A. ``beyond``: the share of elements that
    differ by more than ``tolerance``. For tensors, the tolerance is in the unit of ``relative``;
    for pictures in levels 0 to 255; for boxes in pixels. ``kind``: the kind of difference; null if
    the stage agrees. ``untold``: why the stage was not compared. ``frame``: the compared frame.
    """

    stage: Stage
    what: str
    differs: bool = False
    frame: int | None = None
    max: float | None = None
    rms: float | None = None
    relative: float | None = None
    beyond: float | None = None
    tolerance: float = 0.0
    kind: str | None = None
    detail: str | None = None
    untold: str | None = None


@dataclass(frozen=True)
class Probe:
    """A tensor that the search compared, inside the graph. ``how``: it became a further output of
    the graph ("outputs added"), or the graph was cut to end at it ("cut graph")."""

    tensor: str
    how: str
    relative: float | None
    differs: bool


@dataclass(frozen=True)
class Where:
    """``first``: the first stage that differs, or null. ``probes``: tensors in order of search."""

    a: str
    b: str
    source: str
    frames: int
    first: StageDifference | None
    stages: tuple[StageDifference, ...]
    probes: tuple[Probe, ...] = ()
    verdict: str = ""
    schema: int = SCHEMA
