"""What to type next: the options that would change this run's speed, each as a whole command.

A figure stands beside a command only where what-if or the sweep measured it. Nothing is estimated
here: where there is no figure, the command that measures it is named. What was measured and was not
faster in every round is not offered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import UNSET

from detector.core.analysis.verdict import faster_encoding, given_encoding, has_encodings
from detector.core.session.document import SessionDocument
from detector.core.timeline.spans import ANNOTATE, INFER, READ, WRITE
from detector.lab.analysis.noise import spread_of_run
from detector.lab.session.passes import Change, Interval, SweepFacts, SweepRow, WhatIfFacts
from detector.lab.session.read import SavedSession

Changes = Mapping[str, Change]
"""Change -> its row of what-if."""

PROGRAM, STANDARD_INPUT = "detect-video", "-"
# Where a run's files go, and what is printed of it: nothing that its speed depends on.
APART = ("--run-dir", "-o", "--output", "--only", "--log-to", "--what-if-seconds")
APART_ALONE = ("--prove", "--sweep", "--csv", "--json", "--quiet", "-q", "--verbose", "-v")
LARGER = 4  # times the run's batch
SMALLER = 0.7  # of each side of the network's input: about half of the pixels
STRIDE = 32  # every network's input is a multiple of it
NO_VIDEO, WRITE_FREE, INFER_FREE = "no video", "write free", "infer free"
LIVE_OPTIONS = (("--batch",), ("--size",))
# What measures a step that has no figure.
WHAT_IF = "profile --only what_if"
COMPARE = "compare"
THIS = "this command"


MEASURED, AT_MOST = "measured", "at most"


@dataclass(frozen=True, slots=True)
class Figure:
    """Frames a second, end to end. ``kind``: MEASURED, of this change; AT_MOST, measured of a stage
    that costs nothing, where this change leaves some of it. ``basis``: the row that it is from.
    ``apart``: from the slowest round to the fastest. ``helps``: it was faster than now, beyond the
    noise."""

    fps: float
    kind: str
    basis: str
    apart: float
    helps: bool


@dataclass(frozen=True, slots=True)
class NextStep:
    """One command. ``option``: what is new in it, its last words. ``does``: what changes.
    ``stage``: the one that it takes work from. ``figure``: what it gives; None where nothing says.
    ``measure``: how to measure it."""

    command: Sequence[str]
    option: Sequence[str]
    does: str
    stage: str
    figure: Figure | None
    measure: str


def next_steps(session: SavedSession) -> list[NextStep]:
    """The best measured first, then what the bottleneck calls for, then the others."""
    document = session.document
    if not document.frames.written:
        return []
    if any(one.video.path == STANDARD_INPUT for one in document.each):
        return []  # what came through a pipe does not come again
    facts = session.facts(WhatIfFacts)
    changes = {row.change: row for row in facts.changes} if facts else {}
    steps = [
        *_of_loop(document, changes),
        *_of_writing(document, changes),
        *_of_network(session, changes),
        _take_fewer_frames(document),
    ]
    if document.streams is not UNSET:  # a camera can be neither compared nor read twice
        steps = [replace(step, measure=THIS) for step in steps if step.option[:1] in LIVE_OPTIONS]
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
    """The run that was profiled, as a plain run: what was typed, without what says where its files
    go. Where what was typed is not known, the sources alone."""
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
    """Of the resolved configuration; None where an older session lacks it."""
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
    free, drawing = changes.get(WRITE_FREE), document.verdict.bottleneck == ANNOTATE
    if _option(document, "output", "save") is None:  # else the two contradict each other
        yield _add(
            document,
            ("--no-video",),
            "writes the detections alone, without an annotated video",
            ANNOTATE if drawing else WRITE,
            _measured(changes.get(NO_VIDEO)),
            WHAT_IF,
        )
    faster = faster_encoding(given_encoding(document.config.get("output", {})))
    if "video" in outputs and has_encodings(outputs["video"]) and faster is not None:
        yield _add(document, faster, "encodes faster into a larger file", WRITE, _bound(free), THIS)


def _of_network(session: SavedSession, changes: Changes) -> Iterator[NextStep]:
    document, bound = session.document, _bound(changes.get(INFER_FREE))
    yield _larger_batch(session, changes)
    height, width = document.model_input
    trained = document.verdict.smaller_input
    smaller = [max(STRIDE, int(SMALLER * side) // STRIDE * STRIDE) for side in (width, height)]
    if trained is not UNSET:
        smaller = [trained[1], trained[0]]
    fewer = 1 - smaller[0] * smaller[1] / (width * height)
    if fewer > 0:
        allowed = "if the model allows it" if trained is UNSET else "which it was also trained at"
        yield _add(
            document,
            ("--size", f"{smaller[0]}x{smaller[1]}"),
            f"{fewer:.0%} fewer pixels, {allowed}; may miss small objects",
            INFER,
            None,
            COMPARE,
        )
    # Not every engine runs bf16 or fp16. int8 has to be calibrated on frames like the run's.
    other = "fp32" if document.precision == "int8" else "int8"
    calibrated = _option(document, "calibration", "calibrate") or "int8" in document.precision
    frames = () if calibrated else ("--calibrate", document.each[0].video.path)
    yield _add(
        document,
        (*frames, "--precision", f"{document.precision},{other}"),
        f"compares {document.precision} with {other}: speed, and agreement with fp32",
        INFER,
        _best_swept(session) or bound,
        THIS,
        compare=True,
    )
    yield _add(
        document,
        (),
        "compares all usable engines; run the fastest with --engine NAME",
        INFER,
        bound,
        THIS,
        compare=True,
    )


def _larger_batch(session: SavedSession, changes: Changes) -> NextStep:
    document, sweep = session.document, session.facts(SweepFacts)
    row = next((row for change, row in changes.items() if change.startswith("batch ")), None)
    batch = int(row.change.split()[1]) if row else LARGER * document.batch
    swept = next(
        (
            one
            for one in (sweep.rows if sweep else ())
            if one.batch == batch and one.precision == document.precision
        ),
        None,
    )
    named = _name_measured(document)
    return _add(
        document,
        ("--batch", str(batch), *named),
        f"{batch} frames per inference; each frame waits longer",
        INFER,
        _measured(row) or _swept(session, swept),
        " ".join([COMPARE, "--batch", f"{document.batch},{batch}", *named]),
    )


def _name_measured(document: SessionDocument) -> tuple[str, ...]:
    """Options for the engine and precision of this run, where ``auto`` took them because they were
    measured here. That counts for this batch alone: another one would run something else, of which
    no figure is."""
    asked = {_option(document, "runtime", name) for name in ("engine", "precision")}
    reason = document.engine_reason or ""
    if "auto" not in asked or not any(word in reason for word in ("measured", "tuned for")):
        return ()
    return "--engine", document.engine, "--precision", document.precision


def _take_fewer_frames(document: SessionDocument) -> NextStep:
    stride = 2 * int(_option(document, "input", "stride") or 1)
    return _add(
        document,
        ("--stride", str(stride)),
        f"takes one frame in {stride}: about half of the work for the same clip",
        READ,
        None,
        THIS,
    )


def _add(
    document: SessionDocument,
    option: Sequence[str],
    does: str,
    stage: str,
    figure: Figure | None,
    measure: str,
    compare: bool = False,
) -> NextStep:
    program, *words = base_command(document)
    command = [program, *(("compare",) if compare else ()), *words, *option]
    return NextStep(command, option, does, stage, figure, measure)


def _measured(row: Change | None, kind: str = MEASURED) -> Figure | None:
    if row is None:
        return None
    return Figure(row.fps.median, kind, row.change, row.fps.high - row.fps.low, row.helps)


def _bound(free: Change | None) -> Figure | None:
    """Of a change that leaves some of the stage: less than the stage for nothing."""
    return _measured(free, AT_MOST)


def _swept(session: SavedSession, row: SweepRow | None) -> Figure | None:
    """Beside the sweep's own row of this run."""
    if (rates := _rates(row)) is None or row is None:
        return None
    document, sweep = session.document, session.facts(SweepFacts)
    alike = [one for one in (sweep.rows if sweep else ()) if one.batch == document.batch]
    now = next((_rates(one) for one in alike if one.precision == document.precision), None)
    helps = now is None or rates.median > now.median * (1 + spread_of_run(session))
    return Figure(rates.median, MEASURED, row.name, rates.high - rates.low, helps)


def _rates(row: SweepRow | None) -> Interval | None:
    return None if row is None or row.error else row.fps.get("end_to_end")


def _best_swept(session: SavedSession) -> Figure | None:
    """Of another precision with the run's batch."""
    document, sweep = session.document, session.facts(SweepFacts)
    rows = [
        row
        for row in (sweep.rows if sweep else ())
        if row.batch == document.batch and row.precision != document.precision
    ]
    figures = [figure for row in rows if (figure := _swept(session, row)) is not None]
    return max(figures, key=lambda figure: figure.fps, default=None)
