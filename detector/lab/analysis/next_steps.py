"""What to type next: the options that would change this run's speed, each as a whole command.

The verdict (``core/analysis/verdict.py``) says what may help, what-if by how much. Nothing is
estimated, and what was not faster in every round is not offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import UNSET

from detector.core.analysis.verdict import faster_encoding, given_encoding, has_encodings
from detector.core.session.document import SessionDocument
from detector.core.timeline.spans import ANNOTATE, INFER, WRITE
from detector.lab.session.passes import Change, WhatIfFacts
from detector.lab.session.read import SavedSession

Changes = Mapping[str, Change]
"""Change -> its row of what-if."""

PROGRAM, STANDARD_INPUT = "detect-video", "-"
# Where a run's files go, and what is printed of it: nothing that its speed depends on.
APART = ("--run-dir", "-o", "--output", "--only", "--log-to", "--what-if-seconds")
APART_ALONE = ("--prove", "--sweep", "--csv", "--json", "--quiet", "-q", "--verbose", "-v")
LARGER = 4  # times the run's batch
# What measures a step that has no figure.
WHAT_IF = "profile --only what_if"
THIS = "this command"

MEASURED, AT_MOST = "measured", "at most"


@dataclass(frozen=True, slots=True)
class Figure:
    """Frames a second, end to end. ``kind``: MEASURED, of this change; AT_MOST, measured of a
    stage that costs nothing, where this change leaves some of it. ``basis``: the row that it is
    from. ``apart``: from the slowest round to the fastest. ``helps``: faster than now, beyond
    the noise."""

    fps: float
    kind: str
    basis: str
    apart: float
    helps: bool


@dataclass(frozen=True, slots=True)
class NextStep:
    """One command. ``option``: its new last words. ``stage``: the one relieved. ``figure``: the
    gain, if known. ``measure``: how to measure it."""

    command: Sequence[str]
    option: Sequence[str]
    does: str
    stage: str
    figure: Figure | None
    measure: str


def next_steps(session: SavedSession) -> list[NextStep]:
    """The best measured first, then what the verdict advises, then the others."""
    document = session.document
    piped = any(one.video.path == STANDARD_INPUT for one in document.each)  # it comes once
    if piped or not document.frames.written:
        return []
    facts = session.facts(WhatIfFacts)
    changes = {row.change: row for row in facts.changes} if facts else {}
    if document.streams is UNSET:
        steps = [
            *_of_loop(document, changes),
            *_of_writing(document, changes),
            *_of_network(document, changes),
            *_search(document),
        ]
    else:  # a camera cannot be read twice
        steps = [replace(step, measure=THIS) for step in _of_network(document, changes)]
    steps = [step for step in steps if step.figure is None or step.figure.helps]
    now = document.fps.end_to_end or 0.0  # a bound below it says nothing
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
    """The profiled run as a plain command without its output options; else the sources alone."""
    sources = [one.video.path for one in document.each]
    words = list(document.command[1:])
    if words[:1] in (["profile"], ["detect"]):
        words = words[1:]
    if not set(sources) <= set(words):
        return [PROGRAM, *sources]
    return [PROGRAM, *drop_options(words, APART, APART_ALONE)]


def drop_options(words: Sequence[str], valued: Sequence[str], alone: Sequence[str]) -> list[str]:
    """Typed words without these options; ``valued`` ones go with their value."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in valued:
            skip = True
        elif word not in alone and word.split("=")[0] not in valued:
            kept.append(word)
    return kept


def _option(document: SessionDocument, group: str, name: str) -> Any:
    return document.config.get(group, {}).get(name)


def _of_loop(document: SessionDocument, changes: Changes) -> Iterator[NextStep]:
    if document.sync:
        yield NextStep(
            [word for word in base_command(document) if word != "--sync"],
            (),
            "without --sync, reading, inference and writing overlap",
            INFER,
            _measured(changes.get("overlap on")),
            WHAT_IF,
        )


def _of_writing(document: SessionDocument, changes: Changes) -> Iterator[NextStep]:
    outputs = document.each[0].outputs
    if "video" not in outputs and "pictures" not in outputs:
        return
    free, drawing = changes.get("write free"), document.verdict.bottleneck == ANNOTATE
    if _option(document, "output", "save") is None:  # else the two contradict each other
        yield _add(
            document,
            ("--no-video",),
            "writes the detections alone, without an annotated video",
            ANNOTATE if drawing else WRITE,
            _measured(changes.get("no video")),
            WHAT_IF,
        )
    faster = faster_encoding(given_encoding(document.config.get("output", {})))
    if "video" in outputs and has_encodings(outputs["video"]) and faster is not None:
        yield _add(document, faster, "encodes faster into a larger file", WRITE, _bound(free), THIS)


def _of_network(document: SessionDocument, changes: Changes) -> Iterator[NextStep]:
    row = next((row for change, row in changes.items() if change.startswith("batch ")), None)
    batch = int(row.change.split()[1]) if row else LARGER * document.batch
    yield _add(
        document,
        ("--batch", str(batch), *_name_measured(document)),
        f"{batch} frames per inference; each frame waits longer",
        INFER,
        _measured(row),
        WHAT_IF,
    )
    if (smaller := document.verdict.smaller_input) is not UNSET:
        height, width = smaller
        fewer = 1 - width * height / (document.model_input[0] * document.model_input[1])
        does = f"{fewer:.0%} fewer pixels, trained for; may miss small objects"
        yield _add(document, ("--size", f"{width}x{height}"), does, INFER, None, THIS)


def _search(document: SessionDocument) -> Iterator[NextStep]:
    """What measures engines, precisions, sizes and all else; a pipe or address comes once."""
    path = document.each[0].video.path
    if os.path.exists(path):
        command = ["tune", path]
        does = "finds the fastest settings; with --target 60fps the cheapest that reach 60 FPS"
        stage = document.verdict.bottleneck or INFER
        yield NextStep([PROGRAM, *command], command, does, stage, None, THIS)


def _name_measured(document: SessionDocument) -> tuple[str, ...]:
    """Options for what ``auto`` took because it was measured here. They count for this batch alone:
    no figure covers what another batch would run."""
    asked = {_option(document, "runtime", name) for name in ("engine", "precision")}
    reason = document.engine_reason or ""
    if "auto" not in asked or not any(word in reason for word in ("measured", "tuned for")):
        return ()
    return "--engine", document.engine, "--precision", document.precision


def _add(
    document: SessionDocument,
    option: Sequence[str],
    does: str,
    stage: str,
    figure: Figure | None,
    measure: str,
) -> NextStep:
    command = [*base_command(document), *option]
    return NextStep(command, option, does, stage, figure, measure)


def _measured(row: Change | None, kind: str = MEASURED) -> Figure | None:
    if row is None:
        return None
    return Figure(row.fps.median, kind, row.change, row.fps.high - row.fps.low, row.helps)


def _bound(free: Change | None) -> Figure | None:
    """Of a change that leaves some of the stage: less than the stage for nothing."""
    return _measured(free, AT_MOST)
