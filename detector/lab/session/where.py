"""The document of ``compare --where --json``: the first stage where two configurations differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = 1
Stage = Literal["decode", "letterbox", "input", "graph", "outputs", "candidates", "nms", "annotate"]


@dataclass(frozen=True)
class StageDifference:
    """One stage, given the same input on both sides: that of A.

    ``what``: the tensor or picture that was compared. ``max``, ``rms``: of the difference, in its
    own unit. ``relative``: rms over the size of A (the rms around its mean). ``beyond``: the share
    of elements that differ by more than ``tolerance``, in the unit of ``relative`` (of
    pixels: in levels of 255; of boxes: in pixels). ``kind``: what the difference looks like; null
    if the stage agrees. ``untold``: why the stage was not compared. ``frame``: its number.
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
    """A tensor inside the graph that the search looked at. ``how``: "outputs added" to the graph,
    or a "cut graph", which ends there."""

    tensor: str
    how: str
    relative: float | None
    differs: bool


@dataclass(frozen=True)
class Where:
    """``first``: the stage that differs first; null where none does. ``probes``: the search in the
    graph, in its order. ``picture``: the file that shows where."""

    a: str
    b: str
    source: str
    frames: int
    first: StageDifference | None
    stages: tuple[StageDifference, ...]
    probes: tuple[Probe, ...] = ()
    picture: str | None = None
    verdict: str = ""
    schema: int = SCHEMA
