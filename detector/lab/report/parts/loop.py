"""Parts of the report on the loop: the critical path, measured changes, and the passes' cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from detector.core.errors.text import counted
from detector.core.session.measured import Interval
from detector.core.tables import Column, Rounded, Share, Table
from detector.lab.analysis.loop.activities import DISPLAY_NAMES
from detector.lab.analysis.noise import decimals_of
from detector.lab.analysis.profile import describe_cost
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import figure, stage_key, table
from detector.lab.report.part import How, Part, list_stages
from detector.lab.session.passes import (
    CriticalPathFacts,
    LoopFacts,
    PassRecord,
    PathStage,
    WhatIfFacts,
)
from detector.lab.session.read import SavedSession


def _list_causes(row: PathStage) -> str:
    causes = {name: seconds for name, seconds in row.wait_causes.items() if seconds >= 0.0005}
    return ", ".join(f"{DISPLAY_NAMES.get(name, name)} {s:.3f}" for name, s in causes.items())


PATH = (
    Column("name", "stage"),
    Column("share", "self + wait", ".1%"),
    Column("self_s", "self", ".3f", "s"),
    Column("wait_s", "wait", ".3f", "s"),
    Column("calls", out=2),
    Column("wait_causes", "waits for", value=_list_causes, out=1),
)


def path_table(facts: CriticalPathFacts) -> Table:
    title = (
        f"critical path of {counted(facts.frames, 'frame')}, "
        f"{facts.wall_s:.3f} s of steady state = 100%"
    )
    return Table("path", PATH, facts.stages, title, "a busy stage need not be on this path")


def path(session: SavedSession, facts: CriticalPathFacts) -> str:
    parts = [(row.name, row.name, row.self_s) for row in facts.stages]
    parts.append(("wait", "waits", sum(row.wait_s for row in facts.stages)))
    note = (
        f"{facts.wall_s:.2f} s of steady state ({counted(facts.frames, 'frame')}), excluding "
        f"{facts.startup_s:.2f} s of start-up and {facts.teardown_s:.2f} s of teardown."
    )
    names = {kind for kind, *_ in parts}
    shown = stage_key([name for name in (*list_stages(session), "wait") if name in names])
    return shown + figure(drawings.bar(parts, "s"), note) + table(path_table(facts))


CHANGES = (
    Column("change"),
    # A change that was slower in every round has a negative gain.
    Column(
        "gain",
        form="+.1%",
        value=lambda row: row.fps_ratio.median - 1 if row.helps or row.fps_ratio.high < 1 else None,
        absent="no clear gain",
    ),
    Column("lowest", form="+.1%", value=lambda row: row.fps_ratio.low - 1),
    Column("highest", form="+.1%", value=lambda row: row.fps_ratio.high - 1),
    Column("fps", "FPS", value=lambda row: round_to_noise(row.fps)),
    Column("frame_ms", "ms per frame", value=lambda row: round_to_noise(row.frame_ms), out=1),
    Column("how", "replaced by"),
)


FREE = "free: the stage costs nothing; FPS: the unchanged run's, plus the gain"


def round_to_noise(values: Interval) -> Rounded:
    return Rounded(values.median, decimals_of(values))


def describe_what_if(facts: WhatIfFacts) -> Iterator[Table | str]:
    now = round_to_noise(facts.fps)
    title = (
        f"what if, measured: {counted(facts.rounds, 'round')} of {counted(facts.frames, 'frame')}, "
        f"alternating with the unchanged run ({now:.{now.decimals}f} FPS end to end)"
    )
    yield Table("whatif", CHANGES, facts.changes, title, FREE).without("how")
    yield from (f"unreliable: {reason}" for reason in facts.doubts)
    yield from (f"not measured: {change}: {why}" for change, why in facts.not_measured.items())


def what_if(session: SavedSession, facts: WhatIfFacts) -> str:
    now = round_to_noise(facts.fps)
    note = (
        "<p>Each change alternated with the unchanged run (<b "
        f'data-value="{facts.fps.median!r}">{now:.{now.decimals}f}</b> FPS end to end), '
        f"{counted(facts.rounds, 'round')} of {counted(facts.frames, 'frame')}. The gain is the "
        "median of the rounds; a gain is clear only if every round was faster.</p>"
    )
    if facts.doubts:
        note += f'<p class="warning">Unreliable: {escape("; ".join(facts.doubts))}.</p>'
    if facts.not_measured:
        reasons = "; ".join(f"{change}: {why}" for change, why in facts.not_measured.items())
        note += f"<p>Not measured: {escape(reasons)}.</p>"
    return note + table(Table("whatif", CHANGES, facts.changes))


def describe_instruments(facts: LoopFacts) -> Sequence[str]:
    warning = f"; warning: {facts.warning}" if facts.warning else ""
    return [f"instruments: {describe_cost(facts.instruments)}{warning}"]


PASSES = (
    Column("pass", value=lambda one: one[0]),
    Column("ran", "measured on", value=lambda one: one[1].ran.text if one[1].ran else ""),
    Column("slower", "slowdown", value=lambda one: _describe_slowdown(one[1])),
    Column("seconds", value=lambda one: one[1].seconds),
    Column("went", "result", value=lambda one: _describe_result(one[1])),
)


def passes(session: SavedSession) -> str:
    note = ""
    if (loop := session.facts(LoopFacts)) is not None:
        note = f"<p>Overhead of the plain run's instruments: {describe_cost(loop.instruments)}.</p>"
    rows = list(session.passes.items())
    return note + table(Table("others", PASSES, rows)) if rows else ""


def _describe_slowdown(record: PassRecord) -> Share | str | None:
    """Return the slowdown; "within the noise" if the pass was not slower than the plain run."""
    loop = record.facts
    if record.slowdown is None or (isinstance(loop, LoopFacts) and loop.instruments.high < 0):
        return None
    noise = record.slowdown <= 1 or (isinstance(loop, LoopFacts) and loop.instruments.low <= 0)
    return "within the noise" if noise else Share(record.slowdown - 1)


def _describe_result(record: PassRecord) -> str:
    if record.reason:
        return f"not available: {record.reason}"
    if isinstance(record.facts, LoopFacts) and record.facts.warning:
        return record.facts.warning
    return "ran" if record.undisturbed is None else f"ran, {record.undisturbed}"


CRITICAL_PATH = How(
    "path",
    "critical path",
    "The chain of calls and waits that makes up the wall time of the steady state. A call waits "
    "for its thread, its data, room in a queue, or a free buffer.",
    "Critical path",
)
WHAT_IF = How(
    "whatif",
    "what if",
    "In each run one thing changes: a stage is free (its results for the first frames are "
    "replayed), or overlap, batch or video differs. Unchanged runs come before and after it. The "
    "gain is the median of the ratios: FPS with the change / FPS without it. Nothing is predicted.",
    "What if",
)
INSTRUMENTS = How(
    "passes",
    "passes",
    "Each pass that would slow the run down is a separate run, compared with the plain run. It "
    "uses the same engine, precision, threads, requests, batch and input unless it says otherwise.",
    "Instruments and passes",
)
PARTS = (
    Part(
        "path",
        "Critical path",
        60,
        path,
        how=CRITICAL_PATH,
        facts=CriticalPathFacts,
        says=lambda facts: [path_table(facts)],
    ),
    Part("what-if", "What if", 70, what_if, how=WHAT_IF, facts=WhatIfFacts, says=describe_what_if),
    Part(
        "instruments", "Instruments", 175, facts=LoopFacts, says=describe_instruments, detail=True
    ),
    Part("passes", "Passes", 180, passes, how=INSTRUMENTS),
)
