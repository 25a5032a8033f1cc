"""Show a batch job: a live line on a terminal, or repeated lines in a pipe; at the end a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from rich.text import Text

from detector.batch.documents import (
    OF_SOURCE,
    BatchProgress,
    BatchResult,
    DryRun,
    Found,
    JobSettings,
)
from detector.core.errors.text import counted
from detector.core.tables import Column, Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import draw_table

LINE_EVERY_S = 30.0  # time between lines in a pipe
MOST_CLASSES = 20  # classes whose object counts are printed at the end
MOST_FAILURES = 20  # limit of listed failures, and of listed damaged files
MOST_ITEMS = 20  # names that a dry run lists


def line(progress: BatchProgress) -> str:
    """Return ``12/300 done, 1 failed, 24.9 FPS, ETA 1:02:03, 0.21 core-hours, ...``."""
    parts = [f"{progress.done + progress.skipped}/{progress.total} done"]
    if progress.skipped:
        parts[0] += f" ({progress.skipped} by earlier runs)"
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.parts:
        parts.append(f"{progress.parts_done}/{progress.parts} parts of long files")
    if progress.fps is not None:
        parts.append(f"{progress.fps:.1f} FPS")
    if progress.left and progress.eta_s is not None:
        parts.append(f"ETA {timedelta(seconds=round(progress.eta_s))}")
    parts.append(f"{progress.core_hours:.2f} core-hours")
    working = sum(worker.state == "working" for worker in progress.workers)
    parts.append(f"{working}/{len(progress.workers)} workers busy")
    return ", ".join(parts)


@contextmanager
def live_progress(console: SafeConsole) -> Iterator[Callable[[BatchProgress], None]]:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(line(progress), refresh=True)


@dataclass(slots=True)
class PlainLines:
    say: Callable[[str], None]
    every_s: float = LINE_EVERY_S
    clock: Callable[[], float] = time.monotonic
    _last: float = float("-inf")

    def show(self, progress: BatchProgress) -> None:
        now = self.clock()
        if now - self._last >= self.every_s:
            self._last = now
            self.say(line(progress))


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
        console.print(Text(line(result.progress)))
    if result.failures:
        console.print(draw_table(console, _failures(result)))
        if (more := len(result.failures) - MOST_FAILURES) > 0:
            console.print(Text(f"... and {more} more: see {result.output}/failures.jsonl"))
        console.print(Text("All other items were unaffected. --resume tries failed items again."))
    _print_found(console, result.found)
    if result.report is not None and result.report.slowest:
        console.print(draw_table(console, Table("files", SLOWEST, result.report.slowest)))
    if not result.running and result.frames:
        fps = f", {result.fps:.1f} FPS" if result.fps else ""
        console.print(
            Text(
                f"{counted(result.frames, 'frame')} in {timedelta(seconds=round(result.seconds))}"
                f"{fps}, "
                f"{counted(result.workers, 'worker')}"
            )
        )
    for note in result.notes:
        console.print(Text(f"note: {note}"))
    console.print(Text(f"exit {result.exit.code}: {result.exit.reason}"))


def _settings(settings: JobSettings) -> str:
    """Return ``street 416x256, ort fp32, batch 1, 2 threads per request``."""
    runtime, (height, width) = settings.config["runtime"], settings.model_input
    canvas = f"{width}x{height}"
    if settings.canvas == OF_SOURCE:
        canvas = f"with an input of each source's shape, about {canvas}"
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


def _print_found(console: SafeConsole, found: Found) -> None:
    if found.damaged:
        names = found.damaged[:MOST_FAILURES] + ["..."] * (len(found.damaged) > MOST_FAILURES)
        console.print(Text(f"damaged, so read only in part: {', '.join(names)}"))
    ordered = sorted(found.classes.items(), key=lambda one: -one[1])
    parts = [f"{objects:,} {name}" for name, objects in ordered[:MOST_CLASSES]]
    more = [f"{len(ordered) - MOST_CLASSES} more classes"] if len(ordered) > MOST_CLASSES else []
    console.print(Text(f"found: {', '.join([*parts, *more]) or 'nothing'}"))
    old = f", {found.unknown} without counts (done by an older version)" if found.unknown else ""
    filled = counted(found.filled, "file")
    console.print(Text(f"{filled} with objects, {len(found.empty)} empty{old}"))


SLOWEST = (
    Column("name", "slowest files"),
    Column("seconds", form=".1f"),
    Column("frames", out=1),
    Column("fps", "FPS", ".1f"),
)


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
