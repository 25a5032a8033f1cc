"""Measure what changes would gain, by alternating runs with and without each change.

In a round, a run with the change is between two unchanged runs. It is compared with the mean of
these two, so that a steady drift of the computer's speed cancels out.
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
from detector.core.session.measured import Interval
from detector.core.timeline.spans import ANNOTATE, INFER, WRITE
from detector.lab.session.passes import Change

FEW = 60  # frames; about ten times as many as queues and pools hold
APART = 0.2  # share; the time per frame of unchanged runs may differ by this much
LEAST = 0.02  # share of a frame's time; removing a shorter stage gains less than the noise
LARGER = 4  # the batch to try is this many times the run's batch


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change that may make a run faster. ``change``: name of its what-if row; "" without a row.
    ``options``: what the row's run changes (in words: ``how``); None: the row is an upper bound of
    the gain. ``words``: what a user types. ``does``: their effect; "" if they are not offered."""

    change: str
    words: tuple[str, ...]
    does: str
    stage: str = INFER
    options: Mapping[str, Any] | None = None
    how: str = ""


def list_candidates(document: SessionDocument) -> list[Candidate]:
    """Return the changes that may help; for cameras, only a larger batch and a smaller input."""
    candidates = (
        [] if document.streams is not UNSET else [_change_loop(document), *_write_less(document)]
    )
    batch = LARGER * document.config.get("runtime", {}).get("batch", document.batch)
    words, does = ("--batch", str(batch)), f"{batch} frames per inference; each frame waits longer"
    candidates.append(Candidate(f"batch {batch}", words, does, options={"batch": batch}))
    if (smaller := document.verdict.smaller_input) is not UNSET:
        height, width = smaller
        fewer = 1 - width * height / (document.model_input[0] * document.model_input[1])
        does = f"{fewer:.0%} fewer pixels, a trained size; may miss small objects"
        candidates.append(Candidate("", ("--size", f"{width}x{height}"), does))
    return candidates


def _change_loop(document: SessionDocument) -> Candidate:
    if not document.sync:
        how = "one plain loop with the same threads"
        return Candidate("overlap off", ("--sync",), "", options={"sync": True}, how=how)
    does = "without --sync, reading, inference and writing overlap"
    how = "the overlapped loop"
    return Candidate("overlap on", (), does, options={"sync": False}, how=how)


def _write_less(document: SessionDocument) -> Iterator[Candidate]:
    outputs, requested = document.each[0].outputs, document.config.get("output", {})
    if outputs.keys().isdisjoint(WRITING):
        return
    if requested.get("save") is None:  # --save contradicts --no-video
        does = "writes the detections alone, without an annotated video"
        stage = ANNOTATE if document.verdict.bottleneck == ANNOTATE else WRITE
        options = {"no_video": True, "output": None}
        yield Candidate("no video", ("--no-video",), does, stage, options)
    faster = faster_encoding(given_encoding(requested))
    if "video" in outputs and has_encodings(outputs["video"]) and faster is not None:
        yield Candidate("write free", faster, "encodes faster into a larger file", WRITE)


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds per frame. ``plain``: all unchanged runs, in order. ``changed``: runs of each change.
    ``around``: mean of the plain runs before and after a changed run. ``failed``: change -> why."""

    plain: list[float] = field(default_factory=list)
    changed: dict[str, list[float]] = field(default_factory=dict)
    around: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, change: str, before: float, with_it: float, after: float) -> None:
        self.changed.setdefault(change, []).append(with_it)
        self.around.setdefault(change, []).append((before + after) / 2)

    def drop(self, change: str, reason: str) -> None:
        self.failed[change] = reason
        self.changed.pop(change, None)
        self.around.pop(change, None)


def compare_turns(turns: Turns, how: Mapping[str, tuple[str | None, str]]) -> list[Change]:
    """Return a row per change. ``how``: change -> (stage, its replacement). A row's FPS is its
    ratio times the median FPS of the plain runs."""
    rows, plain_s = [], 1 / statistics.median([1 / one for one in turns.plain])
    for change, seconds in turns.changed.items():
        pairs = list(zip(seconds, turns.around[change], strict=True))
        ratios = [without / with_it for with_it, without in pairs]
        stage, replacement = how[change]
        rows.append(
            Change(
                change=change,
                stage=stage,
                how=replacement,
                fps=Interval.over([ratio / plain_s for ratio in ratios]),
                frame_ms=Interval.over([1e3 * plain_s / ratio for ratio in ratios]),
                fps_ratio=Interval.over(ratios),
                frame_ratio=Interval.over([with_it / without for with_it, without in pairs]),
            )
        )
    return sorted(rows, key=lambda row: -row.fps_ratio.median)


def list_doubts(
    frames: int, plain: Sequence[float], document: SessionDocument | None = None, spent: float = 0
) -> list[str]:
    """List why the figures may not hold for the whole run, which ``document`` describes. ``spent``:
    time of the rounds / the time budget."""
    reasons = []
    if frames < FEW:
        few = counted(frames, "frame", "is")
        reasons.append(f"{few} few: start and end weigh as much as the steady state")
    if (spread := max(plain) / min(plain) - 1) > APART:
        reasons.append(f"in this pass the unchanged run varied by {spread:.0%}")
    if spent > 1 + APART:
        reasons.append(f"the least number of rounds took {spent:.1f} times --what-if-seconds")
    if document is not None:
        others = describe_others(document.verdict.others_cores, document.cpu.cores)
        reasons += [f"{others}, so they also use what a change frees"] if others else []
    return reasons


def stage_share(document: SessionDocument, stage: str) -> float:
    """Return a stage's share of a frame's time, by its wall or CPU time, whichever is longer."""
    figures, libraries = document.stages[stage], document.cpu.libraries
    own = None if libraries is None else libraries.stages.get(stage)
    cpu = figures.cpu_s + (0.0 if own is None else own.cpu_s)
    return max(figures.busy_s, cpu) / (document.frames.written * document.fps.frame_s)
