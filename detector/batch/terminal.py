"""A batch job on a terminal: a live table while it runs, one line in a pipe, and its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
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
from detector.core.terminal.console import SafeConsole, fit_columns

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


def draw_progress(console: SafeConsole, progress: BatchProgress) -> Group:
    """The line, and a row for each worker."""
    table = Table(box=None, pad_edge=False)
    for name in ("worker", "done", "FPS", "busy", "frames", "item"):
        table.add_column(name, justify="left" if name == "item" else "right", no_wrap=True)
    for worker in progress.workers[:MOST_WORKERS]:
        table.add_row(
            str(worker.worker),
            str(worker.done),
            _number(worker.fps),
            _percent(worker.busy_share),
            str(worker.frames) if worker.item is not None else "",
            worker.item if worker.item is not None else worker.state,
        )
    more = len(progress.workers) - MOST_WORKERS
    rest = [Text(f"... and {counted(more, 'worker')} more")] if more > 0 else []
    return Group(
        Text(line(progress), no_wrap=True), fit_columns(console, table, ("busy", "frames")), *rest
    )


@contextmanager
def live_progress(console: SafeConsole) -> Iterator[Callable[[BatchProgress], None]]:
    """Draws over itself while the block lasts."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(draw_progress(console, progress), refresh=True)


class PlainLines:
    """A line now and then, for pipes and logs."""

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
    """The end of a job, or --status."""
    items = result.items
    parts = [f"{items.done} done"]
    if items.skipped:
        parts.append(f"{items.skipped} done before")
    parts.append(f"{items.failed} failed")
    if items.retried:
        parts.append(f"{items.retried} tried again")
    if items.damaged:
        parts.append(f"{items.damaged} of damaged sources")
    if items.left:
        parts.append(f"{items.left} left")
    console.print(Text(f"{result.output}: {', '.join(parts)}", style="bold"))
    if result.settings is not None:
        console.print(Text(_settings(result.settings)))
    if result.running and result.progress is not None:
        console.print(draw_progress(console, result.progress))
    if result.failures:
        console.print(_failures(console, result))
        console.print(Text("Nothing else was hindered by these. --resume tries them again."))
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
    """``street 416x256, ort fp32, batch 1, 2 threads a request``; ``about 416x256 in the shape of
    each source`` where the canvas follows it."""
    runtime, (height, width) = settings.config["runtime"], settings.model_input
    canvas = f"{width}x{height}"
    if settings.canvas == OF_SOURCE:
        canvas = f"about {canvas} in the shape of each source"
    return (
        f"{settings.model} {canvas}, {runtime['engine']} {runtime['precision']}, batch "
        f"{runtime['batch']}, {counted(runtime['threads'], 'thread')} a request"
    )


def _failures(console: SafeConsole, result: BatchResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("failed", overflow="fold")
    table.add_column("tries", justify="right")
    table.add_column("error", overflow="fold")
    for failure in result.failures[:MOST_FAILURES]:
        table.add_row(failure.name or failure.source, str(failure.tries), failure.error)
    if (more := len(result.failures) - MOST_FAILURES) > 0:
        table.add_row(f"... and {more} more", "", f"{result.output}/failures.jsonl has all")
    return fit_columns(console, table, ("tries",))


def print_report(console: SafeConsole, report: BatchReport) -> None:
    """Where the workers' seconds went, and what more of them would bring."""
    console.print(_workers(console, report))
    console.print(_ledger(console, report))
    for title, found in (("slowest files", report.slowest), ("stragglers", report.stragglers)):
        if found:
            console.print(_files(console, title, found))
    if report.stragglers:
        console.print(
            Text(f"For the last {report.straggling_s:.1f} s some workers had nothing left to do.")
        )
    if report.cpu_share is not None:
        console.print(Text(f"Items used {report.cpu_share:.0%} of the time of the job's cores."))
    if report.forecasts:
        console.print(_forecasts(console, report))
    console.print(Text(f"More workers: {report.limit}."))


def _workers(console: SafeConsole, report: BatchReport) -> Table:
    table = _table("worker", "starts", "items", "frames", "load s", "busy s", "idle s", "busy")
    for worker in report.workers:
        table.add_row(
            str(worker.worker),
            str(worker.starts),
            str(worker.items),
            str(worker.frames),
            f"{worker.load_s:.1f}",
            f"{worker.busy_s:.1f}",
            f"{worker.idle_s:.1f}",
            _percent(worker.utilisation),
        )
    return fit_columns(console, table, ("starts", "frames"))


def _ledger(console: SafeConsole, report: BatchReport) -> Table:
    """Stages run side by side in a worker, so that their seconds add up to more than its own."""
    table = _table("all workers", "busy s", "CPU s", "calls")
    for name, stage in report.ledger.stages.items():
        table.add_row(name, f"{stage.busy_s:.1f}", f"{stage.cpu_s:.1f}", str(stage.calls))
    table.add_row("between items", f"{report.between_s:.1f}", "", "")
    return fit_columns(console, table, ("calls",))


def _files(console: SafeConsole, title: str, found: Sequence[SlowItem]) -> Table:
    table = _table(title, "seconds", "frames", "FPS")
    for item in found:
        table.add_row(item.name, f"{item.seconds:.1f}", str(item.frames), _number(item.fps))
    return fit_columns(console, table, ("frames",))


def _forecasts(console: SafeConsole, report: BatchReport) -> Table:
    table = _table("workers like these", "time", "speed-up", "MB/s read")
    for one in report.forecasts:
        table.add_row(
            str(one.workers),
            clock_time(one.seconds),
            f"{one.speedup:.1f}x",
            f"{one.read_mb_s:,.1f}",
        )
    return fit_columns(console, table, ("MB/s read",))


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
        console.print(Text(f"{counted(counts.vanished, 'result', 'is')} of sources that are gone"))
    for note in plan.notes:
        console.print(Text(f"note: {note}"))


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
