"""A batch job on a terminal: a live table while it runs, one line in a pipe, and its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.text import Text

from detector.batch.documents import (
    OF_SOURCE,
    BatchProgress,
    BatchReport,
    BatchResult,
    DryRun,
    JobSettings,
    SlowItem,
)
from detector.core.errors.text import counted
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import draw_table, print_pieces

LINE_EVERY_S = 30.0  # in a pipe
MOST_WORKERS = 16  # rows of the live table
MOST_FAILURES = 20  # rows of the table at the end
MOST_ITEMS = 20  # of a dry run


def line(progress: BatchProgress) -> str:
    """``12/300 done, 1 failed, 24.9 FPS, ETA 1:02:03, 0.21 core-hours``."""
    done = progress.done + progress.skipped
    parts = [f"{done}/{progress.total} done"]
    if progress.skipped:
        parts[0] += f" ({progress.skipped} before)"
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.parts:
        parts.append(f"{progress.parts_done}/{progress.parts} parts of long files")
    if progress.fps is not None:
        parts.append(f"{progress.fps:.1f} FPS")
    if progress.left and progress.eta_s is not None:
        parts.append(f"ETA {clock_time(progress.eta_s)}")
    parts.append(f"{progress.core_hours:.2f} core-hours")
    working = sum(worker.state == "working" for worker in progress.workers)
    parts.append(f"{working}/{len(progress.workers)} workers busy")
    return ", ".join(parts)


def clock_time(seconds: float) -> str:
    """``1:02:03``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


WORKERS = (
    Column("worker"),
    Column("done"),
    Column("fps", "FPS", ".1f"),
    Column("busy_share", "busy", ".0%", out=1),
    Column("frames", value=lambda one: None if one.item is None else one.frames, out=2, absent=""),
    Column("item", value=lambda one: one.state if one.item is None else one.item, longest=50),
)


def draw_progress(console: SafeConsole, progress: BatchProgress) -> Group:
    table = Table("workers", WORKERS, progress.workers[:MOST_WORKERS])
    more = len(progress.workers) - MOST_WORKERS
    rest = [Text(f"... and {counted(more, 'worker')} more")] if more > 0 else []
    return Group(Text(line(progress), no_wrap=True), draw_table(console, table), *rest)


@contextmanager
def live_progress(console: SafeConsole) -> Iterator[Callable[[BatchProgress], None]]:
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(draw_progress(console, progress), refresh=True)


class PlainLines:
    def __init__(
        self,
        say: Callable[[str], None],
        every_s: float = LINE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._every_s, self._clock = say, every_s, clock
        self._last: float | None = None

    def show(self, progress: BatchProgress) -> None:
        now = self._clock()
        if self._last is None or now - self._last >= self._every_s:
            self._last = now
            self._say(line(progress))


def print_result(console: SafeConsole, result: BatchResult) -> None:
    items = result.items
    parts = [f"{items.done} done"]
    if items.skipped:
        parts.append(f"{items.skipped} done before")
    parts.append(f"{items.failed} failed")
    if items.retried:
        parts.append(f"{items.retried} tried again")
    if items.damaged:
        parts.append(f"{items.damaged} from damaged sources")
    if items.left:
        parts.append(f"{items.left} left")
    console.print(Text(f"{result.output}: {', '.join(parts)}", style="bold"))
    if result.settings is not None:
        console.print(Text(_settings(result.settings)))
    if result.running and result.progress is not None:
        console.print(draw_progress(console, result.progress))
    if result.failures:
        console.print(draw_table(console, _failures(result)))
        if (more := len(result.failures) - MOST_FAILURES) > 0:
            console.print(Text(f"... and {more} more: see {result.output}/failures.jsonl"))
        console.print(Text("All other items were unaffected. --resume tries these again."))
    if result.report is not None:
        print_report(console, result.report)
    if not result.running and result.frames:
        fps = f", {result.fps:.1f} FPS" if result.fps else ""
        console.print(
            Text(
                f"{counted(result.frames, 'frame')} in {clock_time(result.seconds)}{fps}, "
                f"{counted(result.workers, 'worker')}"
            )
        )
    for note in result.notes:
        console.print(Text(f"note: {note}"))
    console.print(Text(f"exit {result.exit.code}: {result.exit.reason}"))


def _settings(settings: JobSettings) -> str:
    """``street 416x256, ort fp32, batch 1, 2 threads a request``."""
    runtime, (height, width) = settings.config["runtime"], settings.model_input
    canvas = f"{width}x{height}"
    if settings.canvas == OF_SOURCE:
        canvas = f"about {canvas} in the shape of each source"
    return (
        f"{settings.model} {canvas}, {runtime['engine']} {runtime['precision']}, batch "
        f"{runtime['batch']}, {counted(runtime['threads'], 'thread')} per request"
    )


def _failures(result: BatchResult) -> Table:
    columns = (
        Column("failed", value=lambda one: one.name or one.source),
        Column("tries", out=1),
        Column("error"),
    )
    return Table("failures", columns, result.failures[:MOST_FAILURES])


def print_report(console: SafeConsole, report: BatchReport) -> None:
    print_pieces(console, (Table("workers", OF_WORKERS, report.workers), _ledger(report)))
    for title, found in (("slowest files", report.slowest), ("stragglers", report.stragglers)):
        if found:
            console.print(draw_table(console, _files(title, found)))
    if report.stragglers:
        console.print(Text(f"For the last {report.straggling_s:.1f} s some workers were idle."))
    if report.cpu_share is not None:
        console.print(Text(f"Items used {report.cpu_share:.0%} of the job's CPU time."))
    if report.forecasts:
        console.print(draw_table(console, Table("forecasts", FORECASTS, report.forecasts)))
    console.print(Text(f"More workers: {report.limit}."))


OF_WORKERS = (
    Column("worker"),
    Column("starts", out=1),
    Column("items"),
    Column("frames", out=2),
    Column("load_s", "load", ".1f", "s"),
    Column("busy_s", "busy", ".1f", "s"),
    Column("idle_s", "idle", ".1f", "s"),
    Column("utilisation", "busy", ".0%"),
)
FORECASTS = (
    Column("workers", "workers like these"),
    Column("seconds", "time", value=lambda one: clock_time(one.seconds), right=True),
    Column("speedup", "speed-up", value=lambda one: f"{one.speedup:.1f}x", right=True),
    Column("read_mb_s", "MB/s read", ",.1f", out=1),
)


def _ledger(report: BatchReport) -> Table:
    """Stages run side by side in a worker, so that their seconds add up to more than its own."""
    columns = (
        Column("stage", "all workers"),
        Column("busy_s", "busy", ".1f", "s"),
        Column("cpu_s", "CPU", ".1f", "s", absent=""),
        Column("calls", out=1, absent=""),
    )
    rows: list[dict[str, object]] = [
        {"stage": name, "busy_s": one.busy_s, "cpu_s": one.cpu_s, "calls": one.calls}
        for name, one in report.ledger.stages.items()
    ]
    return Table("ledger", columns, [*rows, {"stage": "between items", "busy_s": report.between_s}])


def _files(title: str, found: Sequence[SlowItem]) -> Table:
    columns = (
        Column("name", title),
        Column("seconds", form=".1f"),
        Column("frames", out=1),
        Column("fps", "FPS", ".1f"),
    )
    return Table("files", columns, found)


def print_dry_run(console: SafeConsole, plan: DryRun) -> None:
    counts = plan.planned
    for name in plan.items[:MOST_ITEMS]:
        console.print(Text(name))
    if (more := len(plan.items) - MOST_ITEMS) > 0:
        console.print(Text(f"... and {more} more"))
    for failure in plan.refused[:MOST_ITEMS]:
        console.print(Text(f"refused: {failure.source}: {failure.error}"))
    console.print(
        Text(
            f"{counted(len(plan.items), 'item')} to do, {plan.bytes / 1e6:,.1f} MB: {counts.new} "
            f"new, {counts.changed} changed, {counts.again} failed before; {counts.skipped} done, "
            f"{counts.refused} refused"
        )
    )
    if counts.vanished:
        console.print(Text(f"{counted(counts.vanished, 'result')} of sources that no longer exist"))
    for note in plan.notes:
        console.print(Text(f"note: {note}"))
