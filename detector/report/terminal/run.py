"""The end of a run on a terminal: the lab's table, the ledger, the verdict.

The tables of ``profile`` are made of the same three functions: ``new_table``, ``number``,
``counted``.
"""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from detector.analysis.summary import seconds_text, stage_rows, thread_rows
from detector.errors import EXIT_DAMAGED, EXIT_INTERRUPTED, EXIT_TERMINATED
from detector.session.document import Summary

# Columns of the terminal. In fewer, the tables' numbers would be broken into two lines (0.4 over
# 1.03), so the terminal may wrap the lines instead.
NARROWEST = 80
# Exit codes whose reason is printed nowhere else: the reasons of failures go to stderr.
SAID_HERE = (EXIT_DAMAGED, EXIT_INTERRUPTED, EXIT_TERMINATED)
CLASSES_SHOWN = 8


def new_table(title: str, *columns: str) -> Table:
    """The first column is aligned left; the others, which are mostly numbers, are aligned right."""
    table = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
    )
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
    return table


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def counted(count: int, noun: str) -> str:
    """``1 frame``, ``2 frames``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_run(console: Console, summary: Summary, verbose: bool = False) -> None:
    """Prints everything that a person is told after a run. Sets ``console`` to at least 80
    columns."""
    console.width = max(console.width, NARROWEST)
    written = summary.frames.written
    parts: list[RenderableType] = []
    if written:
        parts += [
            _lab_table(summary),
            _ledger(summary, written),
            _threads(summary, written),
            Text(f"seconds: {seconds_text(summary)}", style="dim"),
        ]
    parts += [Text(line) for line in _lines(summary, verbose)]
    if written:
        parts.append(Text(summary.verdict.sentence, style="bold"))
    console.print(Group(*parts))


def _lab_table(summary: Summary) -> Table:
    height, width = summary.model_input
    fps = summary.fps
    rates = {"inference FPS": fps.inference, "end-to-end FPS": fps.end_to_end}
    if fps.device is not None:
        rates = {"device FPS": fps.device, **rates}
    table = new_table("", "model", "engine", "precision", "model input", "video size", *rates)
    table.title = None
    table.add_row(
        summary.model,
        summary.engine,
        summary.precision,
        f"{width}x{height}" + (f" batch {summary.batch}" if summary.batch > 1 else ""),
        _video_size(summary),
        *(number(rate, ".2f") for rate in rates.values()),
    )
    return table


def _video_size(summary: Summary) -> str:
    sizes = {source.video.size for source in summary.each} - {None}
    return sizes.pop() or "several" if len(sizes) == 1 else "several"


def _ledger(summary: Summary, frames: int) -> Table:
    table = new_table(
        f"ledger of {counted(frames, 'frame')}, ms a frame",
        *("stage", "busy", "share", "p50", "p90", "p99", "CPU", "thread"),
    )
    for row in stage_rows(summary, frames):
        table.add_row(
            row.stage,
            f"{row.busy_ms:.2f}",
            f"{row.share:.1%}",
            number(row.p50_ms, ".2f"),
            number(row.p90_ms, ".2f"),
            number(row.p99_ms, ".2f"),
            f"{row.cpu_ms:.2f}",
            row.thread,
        )
    note = "in the stages" if summary.cpu.stages_include_libraries else ""
    library = f"{summary.cpu.library_threads_s * 1e3 / frames:.2f}"
    table.add_row("library threads", "", "", "", "", "", library, note, style="dim")
    return table


def _threads(summary: Summary, frames: int) -> Table:
    table = new_table(
        "threads, ms a frame",
        *("thread", "busy", "wait for input", "wait for output", "other", "= wall", "waited for"),
    )
    for row in thread_rows(summary, frames):
        times = (row.busy_ms, row.wait_input_ms, row.wait_output_ms, row.other_ms, row.wall_ms)
        table.add_row(row.thread, *(f"{time:.2f}" for time in times), ", ".join(row.waits))
    return table


def _lines(summary: Summary, verbose: bool) -> list[str]:
    lines = [_frames(summary), _detections(summary)]
    if verbose or summary.engine_reason:
        reason = summary.engine_reason or f"engine {summary.engine}: as asked for"
        lines.append(f"{reason}; {counted(summary.engine_threads, 'thread')} a request")
    lines += _precision(summary, verbose)
    lines += [f"note: {note}" for note in summary.notes]
    for source in summary.each:
        if summary.sources:
            written = counted(source.frames.written, "frame")
            lines.append(f"{source.video.path}: {written}, {source.exit.reason}")
        elif source.exit.code in SAID_HERE:
            lines.append(f"exit {source.exit.code}: {source.exit.reason}")
        lines += [f"{name}: {path}" for name, path in source.outputs.items()]
        lines += [f"kept of the failed run: {path}" for path in source.partial_outputs]
    if summary.session:
        lines.append(f"session: {summary.session}")
    return lines


def _frames(summary: Summary) -> str:
    frames = summary.frames
    others = {
        "dropped": frames.dropped,
        "bad": frames.bad,
        "corrupt": frames.corrupt,
        "skipped": frames.skipped,
    }
    text = f"frames: {frames.read} read, {frames.written} written"
    return text + "".join(f", {count} {name}" for name, count in others.items() if count)


def _detections(summary: Summary) -> str:
    found = summary.detections
    frequent = list(found.by_class.items())[:CLASSES_SHOWN]
    text = f"detections: {found.total}"
    if frequent:
        text += f" ({', '.join(f'{count} {name}' for name, count in frequent)})"
    if found.cut_by_max_det:
        text += f"; {found.cut_by_max_det} more were cut by --max-det"
    return text


def _precision(summary: Summary, verbose: bool) -> list[str]:
    """What was executed, where it is not simply the fp32 that everybody expects."""
    shares, asked = summary.precision_executed, summary.precision
    if summary.precision_effect:
        return [f"precision: {summary.precision_effect}"]
    if shares and (verbose or asked != "fp32" or list(shares) != ["fp32"]):
        return [f"precision: {summary.precision_text} (asked for: {asked})"]
    return []
