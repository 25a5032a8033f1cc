"""The end of a run on a terminal: the lab's table, the ledger, the verdict."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from detector.analysis.summary import seconds_text, stage_rows, thread_rows
from detector.errors import EXIT_DAMAGED, EXIT_INTERRUPTED, EXIT_TERMINATED

# ----------------------------------------------------------------------
# Tables of a profile on a terminal.


def new_table(title: str, *columns: str) -> Table:
    """The first column stands at the left, the others, which are numbers mostly, at the right."""
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


NARROWEST = 80  # columns; in fewer the tables' numbers would be torn, 0.4 over 1.03: the terminal may wrap the lines
# Exit codes whose reason stands on no other line: failures go to stderr.
SAID_HERE = (EXIT_DAMAGED, EXIT_INTERRUPTED, EXIT_TERMINATED)


def print_run(console: Console, summary: dict[str, Any], verbose: bool = False) -> None:
    """Everything that a person is told after a run, in lines of 80 columns at least (``console`` keeps that width)."""
    console.width = max(console.width, NARROWEST)
    written = summary["frames"]["written"]
    parts: list[RenderableType] = []
    if written:
        parts += [
            _lab_table(summary),
            _ledger(summary, written),
            _threads(summary, written),
            _seconds(summary),
        ]
    parts += [Text(line) for line in _lines(summary, verbose)]
    if written:
        parts.append(Text(summary["verdict"]["sentence"], style="bold"))
    console.print(Group(*parts))


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
    )
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _lab_table(summary: dict[str, Any]) -> Table:
    height, width = summary["model_input"]
    fps = summary["fps"]
    rates = {"inference FPS": fps["inference"], "end-to-end FPS": fps["end_to_end"]}
    if fps.get("device") is not None:
        rates = {"device FPS": fps["device"], **rates}
    table = _table("", "model", "engine", "precision", "model input", "video size", *rates)
    table.title = None
    table.add_row(
        summary["model"],
        summary["engine"],
        summary["precision"],
        f"{width}x{height}" + (f" batch {summary['batch']}" if summary["batch"] > 1 else ""),
        _video_size(summary),
        *map(_number, rates.values()),
    )
    return table


def _video_size(summary: dict[str, Any]) -> str:
    videos = (
        [summary["video"]]
        if "video" in summary
        else [source["video"] for source in summary["sources"]]
    )
    sizes = {f"{video['width']}x{video['height']}" for video in videos if video["width"]}
    return sizes.pop() if len(sizes) == 1 else "several"


def _ledger(summary: dict[str, Any], frames: int) -> Table:
    table = _table(
        f"ledger of {counted(frames, 'frame')}, ms a frame",
        *("stage", "busy", "share", "p50", "p90", "p99", "CPU", "thread"),
    )
    for row in stage_rows(summary, frames):
        table.add_row(
            row.stage,
            f"{row.busy_ms:.2f}",
            f"{row.share:.1%}",
            _ms(row.p50_ms),
            _ms(row.p90_ms),
            _ms(row.p99_ms),
            f"{row.cpu_ms:.2f}",
            row.thread,
        )
    cpu = summary["cpu"]
    note = "in the stages" if cpu["stages_include_libraries"] else ""
    library = f"{cpu['library_threads_s'] * 1e3 / frames:.2f}"
    table.add_row("library threads", "", "", "", "", "", library, note, style="dim")
    return table


def _threads(summary: dict[str, Any], frames: int) -> Table:
    table = _table(
        "threads, ms a frame",
        "thread",
        "busy",
        "wait for input",
        "wait for output",
        "other",
        "= wall",
        "waited for",
    )
    for row in thread_rows(summary, frames):
        times = (row.busy_ms, row.wait_input_ms, row.wait_output_ms, row.other_ms, row.wall_ms)
        table.add_row(row.thread, *(f"{time:.2f}" for time in times), ", ".join(row.waits))
    return table


def _seconds(summary: dict[str, Any]) -> Text:
    return Text(f"seconds: {seconds_text(summary)}", style="dim")


def _lines(summary: dict[str, Any], verbose: bool) -> list[str]:
    frames, detections = summary["frames"], summary["detections"]
    by_class = ", ".join(
        f"{count} {name}" for name, count in list(detections["by_class"].items())[:8]
    )
    lines = [
        f"frames: {frames['read']} read, {frames['written']} written"
        + "".join(
            f", {frames[key]} {key}"
            for key in ("dropped", "bad", "corrupt", "skipped")
            if frames[key]
        ),
        f"detections: {detections['total']}"
        + (f" ({by_class})" if by_class else "")
        + (
            f"; {detections['cut_by_max_det']} more were cut by --max-det"
            if detections["cut_by_max_det"]
            else ""
        ),
    ]
    if verbose or summary["engine_reason"]:
        reason = summary["engine_reason"] or f"engine {summary['engine']}: as asked for"
        lines.append(f"{reason}; {counted(summary['engine_threads'], 'thread')} a request")
    lines += _precision(summary, verbose)
    lines += [f"note: {note}" for note in summary["notes"]]
    for source in summary.get("sources", [summary]):
        code, reason = source["exit"]["code"], source["exit"]["reason"]
        if "sources" in summary:
            lines.append(
                f"{source['video']['path']}: {counted(source['frames']['written'], 'frame')}, {reason}"
            )
        elif code in SAID_HERE:
            lines.append(f"exit {code}: {reason}")
        lines += [f"{name}: {path}" for name, path in source["outputs"].items()]
        lines += [f"kept of the failed run: {path}" for path in source["partial_outputs"]]
    if summary.get("session"):
        lines.append(f"session: {summary['session']}")
    return lines


def _precision(summary: dict[str, Any], verbose: bool) -> list[str]:
    """What was executed, where it is not simply the fp32 that everybody expects."""
    shares, asked = summary.get("precision_executed"), summary["precision"]
    if summary.get("precision_effect"):
        return [f"precision: {summary['precision_effect']}"]
    if shares and (verbose or asked != "fp32" or list(shares) != ["fp32"]):
        return [f"precision: {summary['precision_text']} (asked for: {asked})"]
    return []


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
