"""List next steps: whole commands with options that would change this run's speed.

The verdict (``core/analysis/verdict.py``) says what may help. The what-if pass measures by how
much; we estimate nothing. A measured change is offered only if it was faster in every round.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET

from detector.core.session.document import SessionDocument
from detector.core.timeline.spans import INFER
from detector.lab.analysis.loop.what_if import Candidate, list_candidates
from detector.lab.session.passes import Change, WhatIfFacts
from detector.lab.session.read import SavedSession

PROGRAM, STANDARD_INPUT = "detect-video", "-"
# Options that do not affect a run's speed.
UNRELATED = ("--run-dir", "-o", "--output", "--only", "--what-if-seconds")
UNRELATED_FLAGS = ("--csv", "--json", "--quiet", "-q", "--verbose", "-v")
# What measures a step's gain if it is unknown: the what-if pass, or the step's own command.
WHAT_IF = "profile --only what_if"
THIS = "this command"

MEASURED, AT_MOST = "measured", "at most"


@dataclass(frozen=True, slots=True)
class Figure:
    """End-to-end FPS with a change. ``kind``: MEASURED, or AT_MOST if the what-if run left out the
    stage that the change makes cheaper. ``basis``: the what-if row. ``apart``: FPS of the fastest
    round minus FPS of the slowest. ``helps``: the change was faster in every round."""

    fps: float
    kind: str
    basis: str
    apart: float
    helps: bool


@dataclass(frozen=True, slots=True)
class NextStep:
    """One command. ``option``: the words added at its end. ``stage``: the stage that it speeds up.
    ``figure``: FPS with the option, if known. ``measure``: the command that measures that FPS."""

    command: Sequence[str]
    option: Sequence[str]
    does: str
    stage: str
    figure: Figure | None
    measure: str


def next_steps(session: SavedSession) -> list[NextStep]:
    """Return measured steps, highest FPS first; then steps for the bottleneck; then the others."""
    document = session.document
    from_pipe = any(one.video.path == STANDARD_INPUT for one in document.each)
    if from_pipe or not document.frames.written:
        return []
    facts = session.facts(WhatIfFacts)
    changes = {row.change: row for row in facts.changes} if facts else {}
    offered = [one for one in list_candidates(document) if one.does]
    steps = [_step(document, one, changes.get(one.change)) for one in offered]
    if document.streams is UNSET:
        steps += _offer_tune(document)
    else:  # a camera cannot be read twice
        steps = [replace(step, measure=THIS) for step in steps]
    steps = [step for step in steps if step.figure is None or step.figure.helps]
    now = document.fps.end_to_end or 0.0  # an upper bound below the present FPS is useless
    steps = [
        replace(step, figure=None)
        if step.figure and step.figure.kind == AT_MOST and step.figure.fps <= now
        else step
        for step in steps
    ]
    bottleneck = document.verdict.bottleneck

    def rank(step: NextStep) -> tuple[bool, float, bool]:
        exact = step.figure is not None and step.figure.kind != AT_MOST
        rate = step.figure.fps if step.figure is not None else 0.0
        return not exact, -rate if exact else 0.0, step.stage != bottleneck

    return sorted(steps, key=rank)


def base_command(document: SessionDocument) -> list[str]:
    """Return the command of the profiled run without ``profile`` and UNRELATED options. If it does
    not name the sources, return a command with only the sources."""
    sources = [one.video.path for one in document.each]
    words = list(document.command[1:])
    if words[:1] in (["profile"], ["detect"]):
        words = words[1:]
    if not set(sources) <= set(words):
        return [PROGRAM, *sources]
    return [PROGRAM, *drop_options(words, UNRELATED, UNRELATED_FLAGS)]


def drop_options(words: Sequence[str], valued: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Remove options from typed words: ``valued`` options with their value, and ``flags``."""
    remaining, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in valued:
            skip = True
        elif word not in flags and word.split("=")[0] not in valued:
            remaining.append(word)
    return remaining


def _step(document: SessionDocument, one: Candidate, row: Change | None) -> NextStep:
    option, measured = one.words, one.options is not None
    if "--batch" in option:
        option += _name_auto_choice(document)
    command = [word for word in base_command(document) if option or word != "--sync"]
    figure = None
    if row is not None:
        kind, spread = MEASURED if measured else AT_MOST, row.fps.high - row.fps.low
        figure = Figure(row.fps.median, kind, row.change, spread, row.helps)
    how = WHAT_IF if measured else THIS
    return NextStep([*command, *option], option, one.does, one.stage, figure, how)


def _offer_tune(document: SessionDocument) -> Iterator[NextStep]:
    """Offer ``tune`` for files; pipes and streams cannot be read again."""
    path = document.each[0].video.path
    if os.path.exists(path):
        command = ["tune", path]
        does = "finds the fastest settings; with --target 60fps, the cheapest that reach 60 FPS"
        stage = document.verdict.bottleneck or INFER
        yield NextStep([PROGRAM, *command], command, does, stage, None, THIS)


def _name_auto_choice(document: SessionDocument) -> tuple[str, ...]:
    """Return options that keep an engine that ``auto`` chose by measuring. Without them, ``auto``
    might choose another engine for a step with another batch size."""
    runtime = document.config.get("runtime", {})
    requested = {runtime.get(name) for name in ("engine", "precision")}
    reason = document.engine_reason or ""
    if "auto" not in requested or not any(word in reason for word in ("measured", "tuned for")):
        return ()
    return "--engine", document.engine, "--precision", document.precision
