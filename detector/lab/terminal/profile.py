"""Print a profile: for each pass, its facts as text or tables, or why the pass could not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path

from detector.core.errors.text import counted
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.analysis.next_steps import MEASURED, next_steps
from detector.lab.report.part import find_part
from detector.lab.report.parts.loop import path_table
from detector.lab.report.tables import STEPS
from detector.lab.session.passes import WhatIfFacts
from detector.lab.session.profile import NsysDocument
from detector.lab.session.read import SavedSession

ALIKE = ", like the run, "  # in Ran.text, before the differences
MAX_NAMES = 10  # rows of the dependency table on the critical path, and as many rows off it
MAX_ROWS = 50  # stages and threads of a recording; recordings of other programs may have thousands
MAX_CALLS = 15  # CUDA calls in each phase
FEW_CALLS = 3  # system calls of a stage


def print_profile(console: SafeConsole, session: SavedSession, *, short: bool = False) -> None:
    """Print all facts. ``short``: print the most useful ones, and name what is not shown."""
    pieces: list[Table | str] = []
    omitted = ["threads and percentiles"]
    for name, record in session.passes.items():
        part = find_part(record)
        if part is None or part.says is None:
            continue
        if short and part.brief:
            omitted.append(f"the other {name}")
        if short and part.detail:
            omitted.append(name)
        else:
            pieces += (part.brief if short and part.brief else part.says)(record.facts)
    if short:
        pieces.append(f"not shown: {', '.join(omitted)} (-v or the report shows them)")
    pieces += _describe_differences(session)
    if not short:
        pieces += _describe_passes(session)
    print_pieces(console, [*pieces, f"saved run: {session.folder}"])


def list_faster(session: SavedSession) -> list[str]:
    facts = session.facts(WhatIfFacts)
    gains = {row.change: row.fps_ratio.median - 1 for row in facts.gains} if facts else {}
    for one in next_steps(session)[:1]:  # the best measured step comes first
        if one.option and one.figure and one.figure.kind == MEASURED and one.figure.basis in gains:
            gain = f"{gains[one.figure.basis]:+.0%} FPS"
            return [f"Faster: {shlex.join(one.option)} (measured: {gain})"]
    return []


def _describe_differences(session: SavedSession) -> list[str]:
    by_text: dict[str, list[str]] = {}
    for name, record in session.passes.items():
        if record.available and record.ran and (own := record.ran.text.partition(ALIKE)[2]):
            by_text.setdefault(own, []).append(name)
    listed = "; ".join(f"{', '.join(names)} ({own})" for own, names in by_text.items())
    return [f"the passes use the run's settings, except: {listed}"] if listed else []


def _describe_passes(session: SavedSession) -> list[str]:
    lines = []
    for name, record in session.passes.items():
        if not record.available:
            lines.append(f"{name}: not available: {record.reason}")
        elif record.slowdown is not None and name != "loop":
            slower = record.slowdown > 1
            took = f"took {record.slowdown:.2f} times as long" if slower else "took no longer"
            lines.append(f"{name}: the run {took} under this pass")
        elif record.undisturbed is not None:
            lines.append(f"{name}: no overhead: {record.undisturbed}")
    return lines


RUNS = (
    Column("run", value=lambda one: one[0]),
    Column("process", value=lambda one: one[1].process),
    Column("program", value=lambda one: Path(one[1].program or "").name, out=1),
    Column("frames", value=lambda one: one[1].frames),
    Column("s", form=".3f", value=lambda one: one[1].seconds),
)
DEPENDENCY = (
    Column("share", "critical path", ".2%"),
    Column("critical_path_s", "critical path", ".6f", "s"),
    Column("waiting_s", "waiting", ".6f", "s"),
    Column("name"),
)


def _list_runs(document: NsysDocument) -> Iterator[Table | str]:
    cut = document.runs[document.run - 1].open_ranges
    runs = list(enumerate(document.runs, 1))
    if len(runs) > 1:
        yield Table("runs", RUNS, runs, "runs of the recording")
        yield f"the tables show run {document.run}; for another run, use --nsys-run N"
    for at, run in runs:
        if run.outside:
            which = f"outside all runs: {counted(run.ranges, 'range')} of process {run.process}"
            where = "such as calls of detector(picture)"
            yield f"note: {which}, {where}; --nsys-run {at} shows them"
    if cut:
        yield f"note: {counted(cut, 'range')} omitted: still open when the recording ended"


def _dependency_table(document: NsysDocument) -> Table:
    # The rows with the longest time on the path, then those with the longest waits off it.
    on_path = [row for row in document.dependency if row.critical_path_s][:MAX_NAMES]
    waiting = [row for row in document.dependency if not row.critical_path_s][:MAX_NAMES]
    rows, left = [*on_path, *waiting], len(document.dependency) - len(on_path) - len(waiting)
    more = _left_out(left, "row")
    title = "dependency analysis of the whole run, in nvprof's format"
    return Table("dependency", DEPENDENCY, rows, title, more)


def _call_tables(document: NsysDocument) -> Iterator[Table]:
    for phase in dict.fromkeys(row.phase for row in document.calls):
        rows = [row for row in document.calls if row.phase == phase]
        more = _left_out(len(rows) - MAX_CALLS, "row")
        title = f"dependency analysis by CUDA call: {phase}"
        yield Table("calls", DEPENDENCY, rows[:MAX_CALLS], title, more)


def _seconds_table(
    title: str,
    columns: tuple[str, str],
    seconds: Mapping[str, Mapping[str, float]],
    most: int | None = None,
) -> Table:
    longest = _longest({name: sum(each.values()) for name, each in seconds.items()})
    rows = [
        (name, what, value)
        for name, each in seconds.items()
        if name in longest
        for what, value in sorted(each.items(), key=lambda item: -item[1])[:most]
    ]
    heads = [
        Column(name, form=".3f", value=itemgetter(at)) for at, name in enumerate((*columns, "s"))
    ]
    return Table(columns[1], heads, rows, title, _left_out(len(seconds) - len(longest), columns[0]))


def _longest(seconds: Mapping[str, float]) -> set[str]:
    return set(sorted(seconds, key=lambda name: -seconds[name])[:MAX_ROWS])


def _left_out(count: int, what: str) -> str:
    return f"{counted(count, f'shorter {what}')} omitted; --json has all" if count > 0 else ""


def _stage_table(document: NsysDocument) -> Table:
    longest = _longest({row.step: row.total for row in document.stages})
    rows = [row for row in document.stages if row.step in longest]
    more = _left_out(len(document.stages) - len(rows), "stage")
    stages = Table("stages", STEPS, rows, "stages of the recording, ms", more)
    return stages.pick("step", "count", "avg", "p50", "p90", "max", "share_of_stages")


def print_recorded(console: SafeConsole, document: NsysDocument) -> None:
    pieces: list[Table | str] = [
        *_list_runs(document),
        _stage_table(document),
        _seconds_table("waits, s", ("thread", "waited for"), document.waits),
    ]
    if document.blocked:
        title = "blocked in system calls, s"
        pieces.append(_seconds_table(title, ("stage", "call"), document.blocked, FEW_CALLS))
    if document.critical_path is not None:
        pieces += [path_table(document.critical_path), _dependency_table(document)]
    pieces += _call_tables(document)
    gpu = document.gpu
    if gpu.available:
        busy = "-" if gpu.busy_share is None else f"{gpu.busy_share:.1%}"
        pieces.append(f"GPU busy {busy} of the run")
    else:
        pieces.append(f"GPU: {gpu.reason}")
    # Ranges outside runs have no queues, so nothing is missing.
    if not (document.loop_is_known or document.runs[document.run - 1].outside):
        pieces.append(
            "note: the recording does not contain the queue sizes, so the defaults are used"
        )
    print_pieces(console, pieces)
