"""What a run would gain from a change, by runs with it and without it in turn.

A round of a change is one run with it, between two runs without. Their mean is what it is compared
with: what slows the computer down steadily falls on both alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from detector.core.analysis.verdict import (
    WRITING,
    describe_others,
    faster_encoding,
    given_encoding,
    has_encodings,
)
from detector.core.errors.text import counted
from detector.core.session.document import SessionDocument
from detector.core.timeline.spans import ANNOTATE, INFER, WRITE
from detector.lab.session.passes import Change, Interval

FEW = 60  # frames: some ten times what queues and pools hold
APART = 0.2  # of the time a frame, between the fastest and the slowest run without a change
LEAST = 0.02  # of a frame's time: a stage of less gives less than runs differ by
LARGER = 4  # times the run's batch


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change of a run that may make it faster. With ``options`` what-if measures it, in the row
    ``change``, which says ``how``; without, that row bounds its gain, if it has one. A user types
    ``words``; ``does``: their effect, "" if not offered."""

    change: str
    words: tuple[str, ...]
    does: str
    stage: str = INFER
    options: Mapping[str, Any] | None = None
    how: str = ""


def list_candidates(document: SessionDocument) -> list[Candidate]:
    """Return what would help besides a stage that costs nothing; of cameras, what can be tried."""
    found = (
        [] if document.streams is not UNSET else [_other_loop(document), *_less_writing(document)]
    )
    batch = LARGER * document.config.get("runtime", {}).get("batch", document.batch)
    words, does = ("--batch", str(batch)), f"{batch} frames per inference; each frame waits longer"
    found.append(Candidate(f"batch {batch}", words, does, options={"batch": batch}))
    if (smaller := document.verdict.smaller_input) is not UNSET:
        height, width = smaller
        fewer = 1 - width * height / (document.model_input[0] * document.model_input[1])
        does = f"{fewer:.0%} fewer pixels, trained for; may miss small objects"
        found.append(Candidate("", ("--size", f"{width}x{height}"), does))
    return found


def _other_loop(document: SessionDocument) -> Candidate:
    if not document.sync:
        how = "one plain loop with the same threads"
        return Candidate("overlap off", ("--sync",), "", options={"sync": True}, how=how)
    does = "without --sync, reading, inference and writing overlap"
    how = "the overlapped loop"
    return Candidate("overlap on", (), does, options={"sync": False}, how=how)


def _less_writing(document: SessionDocument) -> Iterator[Candidate]:
    outputs, asked = document.each[0].outputs, document.config.get("output", {})
    if outputs.keys().isdisjoint(WRITING):
        return
    if asked.get("save") is None:  # else the two contradict each other
        does = "writes the detections alone, without an annotated video"
        stage = ANNOTATE if document.verdict.bottleneck == ANNOTATE else WRITE
        options = {"no_video": True, "output": None}
        yield Candidate("no video", ("--no-video",), does, stage, options)
    faster = faster_encoding(given_encoding(asked))
    if "video" in outputs and has_encodings(outputs["video"]) and faster is not None:
        yield Candidate("write free", faster, "encodes faster into a larger file", WRITE)


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds a frame. ``plain``: unchanged runs in order. ``changed``: each change by round;
    ``beside``: the mean of the plain runs around each. ``failed``: change -> reason."""

    plain: list[float] = field(default_factory=list)
    changed: dict[str, list[float]] = field(default_factory=dict)
    beside: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, change: str, before: float, with_it: float, after: float) -> None:
        self.changed.setdefault(change, []).append(with_it)
        self.beside.setdefault(change, []).append((before + after) / 2)

    def drop(self, change: str, why: str) -> None:
        self.failed[change] = why
        self.changed.pop(change, None)
        self.beside.pop(change, None)


def compare_turns(turns: Turns, how: Mapping[str, tuple[str | None, str]]) -> list[Change]:
    """``how``: change -> (stage, its replacement). FPS are ratios times the plain median."""
    rows, plain_s = [], 1 / statistics.median([1 / one for one in turns.plain])
    for change, seconds in turns.changed.items():
        pairs = list(zip(seconds, turns.beside[change], strict=True))
        ratios = [without / with_it for with_it, without in pairs]
        stage, said = how[change]
        rows.append(
            Change(
                change=change,
                stage=stage,
                how=said,
                fps=Interval.over([ratio / plain_s for ratio in ratios]),
                frame_ms=Interval.over([1e3 * plain_s / ratio for ratio in ratios]),
                fps_ratio=Interval.over(ratios),
                frame_ratio=Interval.over([with_it / without for with_it, without in pairs]),
            )
        )
    return sorted(rows, key=lambda row: -row.fps_ratio.median)


def list_doubts(
    frames: int, plain: Sequence[float], document: SessionDocument | None = None
) -> list[str]:
    """Reasons why the figures may not hold for the whole run. ``document``: of the run before."""
    reasons = []
    if frames < FEW:
        few = counted(frames, "frame", "is")
        reasons.append(f"{few} few: start and end weigh as much as the steady state")
    if (apart := max(plain) / min(plain) - 1) > APART:
        reasons.append(f"in this pass the unchanged run varied by {apart:.0%}")
    if document is not None:
        others = describe_others(document.verdict.others_cores, document.cpu.cores)
        reasons += [f"{others}, so they also use what a change frees"] if others else []
    return reasons


def stage_share(document: SessionDocument, stage: str) -> float:
    """Return a stage's time over a frame's; a stage off the critical path takes cores, too."""
    figures, libraries = document.stages[stage], document.cpu.libraries
    own = None if libraries is None else libraries.stages.get(stage)
    cpu = figures.cpu_s + (0.0 if own is None else own.cpu_s)
    return max(figures.busy_s, cpu) / (document.frames.written * document.fps.frame_s)
