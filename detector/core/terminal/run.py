"""The end of a run on a terminal: what was found, the lab's table, the verdict, the ledger.

The tables of ``profile`` are made of the same two functions: ``new_table``, ``number``.
"""

from __future__ import annotations

import os

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from detector.core.analysis.summary import live_memory_text, seconds_text, stage_rows, thread_rows
from detector.core.errors import EXIT_DAMAGED, STOPPED_CODES
from detector.core.errors.text import counted, printable
from detector.core.session.document import LiveMemory, StreamSummary, Summary
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.progress import shorten

# Columns of the terminal. In fewer, the tables' numbers would be broken into two lines (0.4 over
# 1.03), so the terminal may wrap the lines instead.
NARROWEST = 80
# Exit codes whose reason is printed nowhere else: the reasons of failures go to stderr.
SAID_HERE = (EXIT_DAMAGED, *STOPPED_CODES)
CLASSES_SHOWN = 8
LONGEST_CAMERA = 16  # columns of a camera's name
PICTURES = frozenset({"video", "pictures"})  # outputs that hold whole frames
# Why a received picture was not detected (sources.live.base), in words that follow its count.
DROPPED = {
    "newer": "replaced by newer ones",
    "undecoded": "not decoded for want of time",
    "lag": "older than --max-age",
    "rate": "beyond the camera's rate",
    "corrupt": "damaged",
    "no_key": "before the first key frame",
    "stopped": "at the end",
}


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


def print_run(console: SafeConsole, summary: Summary, verbose: bool = False) -> None:
    """Prints what a person is told after a run, most wanted first: what was found and where it is,
    the two rates, what limits the run, and where a frame's time went.

    ``verbose`` adds percentiles, threads and the seconds of each phase. Pictures have no steady
    state, so nothing is said about what limits them. Sets ``console`` to at least 80 columns.
    """
    console.width = max(console.width, NARROWEST)
    written, steady = summary.frames.written, _is_video(summary)
    parts: list[RenderableType] = [Text(line) for line in _found_lines(summary)]
    if streams_of(summary):
        parts.append(stream_table(summary))
    if written:
        parts.append(_lab_table(summary))
        if steady or verbose:
            parts.append(Text(summary.verdict.sentence, style="bold"))
            parts.append(_ledger(summary, written, verbose))
        if verbose:
            parts.append(_threads(summary, written))
            parts.append(Text(f"seconds: {seconds_text(summary)}", style="dim"))
    parts += [Text(line) for line in _remarks(summary, verbose)]
    console.print(Group(*parts))


def _is_video(summary: Summary) -> bool:
    """Whether any source is a video. A summary that does not say counts as one."""
    kinds = {source.video.kind for source in summary.each}
    return kinds != {"pictures"}


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


def _ledger(summary: Summary, frames: int, verbose: bool) -> Table:
    percentiles = ("p50", "p90", "p99") if verbose else ()
    table = new_table(
        f"ledger of {counted(frames, 'frame')}, ms a frame",
        *("stage", "busy", "share", *percentiles, "CPU", "thread"),
    )
    for row in stage_rows(summary, frames):
        times = (row.p50_ms, row.p90_ms, row.p99_ms)[: len(percentiles)]
        table.add_row(
            row.stage,
            f"{row.busy_ms:.2f}",
            f"{row.share:.1%}",
            *(number(time, ".2f") for time in times),
            f"{row.cpu_ms:.2f}",
            _threads_text(row.thread),
        )
    if summary.decoding and summary.decoding.calls:
        # Not a stage: the loop's ledger adds up without it. A feed decodes what is dropped, too.
        one = summary.decoding
        busy, cpu = (f"{seconds * 1e3 / frames:.2f}" for seconds in (one.busy_s, one.cpu_s))
        empty = [""] * (1 + len(percentiles))
        table.add_row("decoding", busy, *empty, cpu, counted(one.threads, "camera"), style="dim")
    if verbose:
        note = "in the stages" if summary.cpu.stages_include_libraries else ""
        library = f"{summary.cpu.library_threads_s * 1e3 / frames:.2f}"
        empty = [""] * (2 + len(percentiles))
        table.add_row("library threads", *empty, library, note, style="dim")
    return table


def _threads_text(names: str) -> str:
    """``reader``; ``3 workers`` for worker-0,worker-1,worker-2."""
    each = names.split(",")
    return names if len(each) == 1 else f"{len(each)} workers"


def _threads(summary: Summary, frames: int) -> Table:
    table = new_table(
        "threads, ms a frame",
        *("thread", "busy", "wait for input", "wait for output", "other", "= wall", "waited for"),
    )
    for row in thread_rows(summary, frames):
        times = (row.busy_ms, row.wait_input_ms, row.wait_output_ms, row.other_ms, row.wall_ms)
        table.add_row(row.thread, *(f"{time:.2f}" for time in times), ", ".join(row.waits))
    return table


def _found_lines(summary: Summary) -> list[str]:
    """What was found, where it is, and what went wrong."""
    lines = [_frames(summary), _detections(summary)]
    for source in summary.each:
        if summary.sources:
            written = counted(source.frames.written, "frame")
            lines.append(f"{source.video.path}: {written}, {source.exit.reason}")
        elif source.exit.code in SAID_HERE:
            lines.append(f"exit {source.exit.code}: {source.exit.reason}")
        lines += stream_lines(summary)
        lines += [f"{name}: {path}" for name, path in source.outputs.items()]
        lines += [f"kept of the failed run: {path}" for path in source.partial_outputs]
    return lines


def _remarks(summary: Summary, verbose: bool) -> list[str]:
    lines = []
    if verbose or summary.engine_reason:
        reason = summary.engine_reason or f"engine {summary.engine}: as asked for"
        lines.append(f"{reason}; {counted(summary.engine_threads, 'thread')} a request")
    lines += _precision(summary, verbose)
    lines += [f"note: {note}" for note in summary.notes]
    memory = summary.memory
    if isinstance(memory, LiveMemory) and (verbose or memory.slope_mb_per_hour is not None):
        lines.append(f"memory: {live_memory_text(memory)}")
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
        "reused": frames.reused,
    }
    done = "written" if _wrote_pictures(summary) else "detected"
    text = f"frames: {frames.read} read, {frames.written} {done}"
    return text + "".join(f", {count} {name}" for name, count in others.items() if count)


def _wrote_pictures(summary: Summary) -> bool:
    """Whether frames became a video or pictures. Recordings of cameras do not hold every frame."""
    if streams_of(summary):
        return False
    return any(
        source.partial_outputs or not PICTURES.isdisjoint(source.outputs) for source in summary.each
    )


def _detections(summary: Summary) -> str:
    found = summary.detections
    classes = list(found.by_class.items())
    shown, rest = classes[:CLASSES_SHOWN], classes[CLASSES_SHOWN:]
    text = f"detections: {found.total}"
    if shown:
        more = f" and {sum(count for _, count in rest)} in {counted(len(rest), 'more class')}"
        listed = ", ".join(f"{count} {name}" for name, count in shown)
        text += f" ({listed}{more if rest else ''})"
    if found.cut_by_max_det:
        text += f"; {found.cut_by_max_det} more were cut by --max-det"
    return text


def _precision(summary: Summary, verbose: bool) -> list[str]:
    """What was executed, where it is not simply the fp32 that everybody expects. Whoever took the
    precision, the user or ``auto``: the line before says it."""
    shares, taken = summary.precision_executed, summary.precision
    if summary.precision_effect:
        return [f"precision: {summary.precision_effect}"]
    if shares and (verbose or taken != "fp32" or list(shares) != ["fp32"]):
        return [f"precision {taken}: executed {summary.precision_text}"]
    return []


def stream_table(summary: Summary) -> Table:
    """The cameras of a live run at its end."""
    table = new_table(
        "cameras",
        *("camera", "size", "FPS/sent", "dropped", "age p50", "p90", "p99", "max ms", "lost"),
    )
    for stream in streams_of(summary):
        age = stream.age_ms
        table.add_row(
            shorten(printable(stream.name), LONGEST_CAMERA),
            stream.size or "-",
            f"{number(stream.processed_fps, '.1f')}/{number(stream.camera_fps, '.1f')}",
            f"{stream.dropped_share:.0%}",
            *(number(value, ".0f") for value in (age.p50, age.p90, age.p99, age.max)),
            str(stream.reconnects + stream.stalls),
        )
    return table


def stream_lines(summary: Summary) -> list[str]:
    """What was found, and what is wrong, camera by camera."""
    lines = []
    for stream in streams_of(summary):
        found = ", ".join(f"{count} {name}" for name, count in list(stream.detections.items())[:8])
        drops = ", ".join(
            f"{count} {DROPPED.get(why, why)}" for why, count in stream.dropped.items()
        )
        text = f"{stream.name}: {counted(stream.processed, 'picture')}, {found or 'nothing found'}"
        text += f"; dropped {drops}" if drops else ""
        if stream.reconnects or stream.stalls:
            times = f"{counted(stream.reconnects, 'reconnect')}, {counted(stream.stalls, 'stall')}"
            text += f"; {times}"
        lines.append(text)
        if stream.error and not stream.processed:
            lines.append(f"{stream.name}: {stream.error}")
    folders = {
        os.path.dirname(stream.outputs["jsonl"])
        for stream in streams_of(summary)
        if "jsonl" in stream.outputs
    }
    return [*lines, *(f"outputs: {os.path.join(folder, 'CAMERA', '')}" for folder in folders)]


def streams_of(summary: Summary) -> list[StreamSummary]:
    """Empty for runs of files."""
    return summary.streams if isinstance(summary.streams, list) else []
