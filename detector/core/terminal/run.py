"""Print the summary of a run: detections, rates, bottleneck, and the time of each stage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Group, RenderableType
from rich.text import Text

from detector.core.analysis.summary import live_memory_text, seconds_text, streams_of
from detector.core.errors.text import counted
from detector.core.session.document import LiveMemory, Summary
from detector.core.terminal.brief import EXPLAINED, brief_lines, camera_lines, zone_lines
from detector.core.terminal.console import SafeConsole

# With fewer columns, rich would break long numbers in tables into two lines. For a narrower
# terminal, we draw lines of this width, which the terminal wraps.
NARROWEST = 80
CLASSES_SHOWN = 8
PICTURES = frozenset({"video", "pictures"})  # outputs that hold whole frames
# Why a received picture was not inferred (live/sources/base.py) -> text after the count.
DROPPED = {
    "newer": "replaced by newer ones",
    "undecoded": "not decoded for lack of time",
    "lag": "too old",
    "rate": "above the camera's rate",
    "corrupt": "damaged",
    "no_key": "before the first key frame",
    "stopped": "at the end",
}


def print_run(
    console: SafeConsole,
    summary: Summary,
    verbose: bool = False,
    closing: Sequence[str] = (),
    faster: Sequence[str] = (),
) -> None:
    """Print the results of a run, the most important first.

    ``verbose`` adds percentiles, threads and the seconds of each phase. Without it, brief.py makes
    the lines. ``closing``: lines from the wings (wings.py). ``faster``: settings that were measured
    to be faster. Widens ``console`` to at least 80 columns.
    """
    console.width = max(console.width, NARROWEST)
    if not verbose and not streams_of(summary):
        console.print(Group(*brief_lines(console, summary, closing, faster)))
        return
    from detector.core.analysis import tables
    from detector.core.terminal.tables import draw_table

    written = summary.frames.written
    parts: list[RenderableType] = [Text(line) for line in _found_lines(summary)]
    if streams_of(summary):
        parts.append(draw_table(console, tables.cameras_table(summary)))
    if not verbose:
        console.print(Group(*parts, *camera_lines(console, summary, closing)))
        return
    if written:
        one_picture = ("batch",) if summary.batch == 1 else ()
        rates = tables.rates_table(summary)
        parts.append(draw_table(console, rates.without("frames", *one_picture)))
        ledger = tables.ledger_table(summary, written, libraries=True)
        parts.append(Text(summary.verdict.sentence, style="bold"))
        parts.append(draw_table(console, ledger))
        parts.append(draw_table(console, tables.threads_table(summary, written)))
        parts.append(Text(f"seconds: {seconds_text(summary)}", style="dim"))
    parts += [Text(line) for line in (*_remark_lines(summary), *closing)]
    console.print(Group(*parts))


def _found_lines(summary: Summary) -> list[str]:
    lines = [_frames_line(summary), _detections_line(summary)]
    for source in summary.each:
        if summary.sources:
            written = counted(source.frames.written, "frame")
            lines.append(f"{source.video.path}: {written}, {source.exit.reason}")
        elif source.exit.code in EXPLAINED:
            lines.append(f"exit {source.exit.code}: {source.exit.reason}")
        lines += stream_lines(summary)
        lines += [f"{name}: {path}" for name, path in source.outputs.items()]
        lines += [f"kept from the failed run: {path}" for path in source.partial_outputs]
    return [*lines, *zone_lines(summary)]


def _remark_lines(summary: Summary) -> list[str]:
    reason = summary.engine_reason or f"engine {summary.engine}: as requested"
    lines = [f"{reason}; {counted(summary.engine_threads, 'thread')} per request"]
    if summary.device:
        lines.append(f"device {summary.device}: {summary.device_name or 'unnamed'}")
    lines += _precision_lines(summary)
    lines += [f"note: {note}" for note in summary.notes]
    memory = summary.memory
    if isinstance(memory, LiveMemory):
        lines.append(f"memory: {live_memory_text(memory)}")
    if summary.session:
        lines.append(f"saved run: {summary.session}")
    return lines


def _frames_line(summary: Summary) -> str:
    frames = summary.frames
    other_counts = {
        count.name: getattr(frames, count.name)
        for count in sorted(fields(frames), key=lambda count: count.name != "dropped")
        if count.name not in ("read", "written")
    }
    done = "written" if _wrote_pictures(summary) else "detected"
    text = f"frames: {frames.read} read, {frames.written} {done}"
    return text + "".join(f", {count} {name}" for name, count in other_counts.items() if count)


def _wrote_pictures(summary: Summary) -> bool:
    """Return whether frames were written to a video or pictures. False for cameras."""
    if streams_of(summary):
        return False
    return any(
        source.partial_outputs or not PICTURES.isdisjoint(source.outputs) for source in summary.each
    )


def _detections_line(summary: Summary) -> str:
    counts = summary.detections
    classes = list(counts.by_class.items())
    shown, rest = classes[:CLASSES_SHOWN], classes[CLASSES_SHOWN:]
    text = f"detections: {counts.total}"
    if shown:
        more = f" and {sum(count for _, count in rest)} in {counted(len(rest), 'other class')}"
        listed = ", ".join(f"{count} {name}" for name, count in shown)
        text += f" ({listed}{more if rest else ''})"
    if counts.cut_by_max_det:
        text += f"; {counts.cut_by_max_det} more cut by --max-det"
    return text


def _precision_lines(summary: Summary) -> list[str]:
    if summary.precision_effect:
        return [f"precision: {summary.precision_effect}"]
    if summary.precision_executed:
        return [f"executed precision: {summary.precision_text}"]
    return []


def stream_lines(summary: Summary) -> list[str]:
    lines = []
    for stream in streams_of(summary):
        top = list(stream.detections.items())[:CLASSES_SHOWN]
        counts = ", ".join(f"{count} {name}" for name, count in top)
        drops = ", ".join(
            f"{count} {DROPPED.get(why, why)}" for why, count in stream.dropped.items()
        )
        text = f"{stream.name}: {counted(stream.processed, 'picture')}, {counts or 'nothing found'}"
        text += f"; dropped: {drops}" if drops else ""
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
