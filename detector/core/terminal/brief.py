"""The end of a run in twenty lines at most; ``run.py`` has the whole, which -v prints."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.text import Text

from detector.core.analysis.summary import input_text, live_memory_text, stage_rows
from detector.core.analysis.verdict import describe_others
from detector.core.errors import EXIT_DAMAGED, EXIT_DONE, STOPPED_CODES
from detector.core.errors.text import counted
from detector.core.session.document import LiveMemory, SourceSummary, Summary
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.progress import shorten
from detector.core.timeline import INFER
from detector.core.timeline.order import GROUPS, THREADS, group_of, is_after_inference

# Exit codes whose reason is printed nowhere else: the reasons of failures go to stderr.
SAID_HERE = (EXIT_DAMAGED, *STOPPED_CODES)
SOURCES_SHOWN = 6
CLASSES_SHOWN = 4
ZONES_SHOWN = 8
NOTES_SHOWN = 4
NOT_CROSSED = "nothing crossed it; does it lie across the way of the objects?"
BAR, LEAST_BAR = 26, 10  # characters
FULL, EMPTY = "█░", "#."  # where the terminal has the letters, and where not
BESIDE = "   "


def brief_lines(
    console: SafeConsole,
    summary: Summary,
    steady: bool,
    closing: Sequence[str] = (),
    faster: Sequence[str] = (),
) -> Iterator[Text]:
    """Yield the brief lines. ``steady``: whether the run's limit is known. ``closing``: lines from
    elsewhere. ``faster``: faster settings that were measured, not guessed."""
    for line in _found(summary):
        yield Text(line)
    if summary.frames.written:
        yield _rates(summary)
        if steady:
            yield from _stages(summary, console.width)
            yield from _bars(console, summary)
            if others := describe_others(summary.verdict.others_cores, summary.cpu.cores):
                yield Text(f"{others.capitalize()}, which slowed this run.")
            yield from map(Text, faster or _advice(summary))
    yield from map(Text, (*_remarks(summary), *closing, *_written(summary)))


def camera_lines(console: SafeConsole, summary: Summary, closing: Sequence[str]) -> Iterator[Text]:
    """Yield the lines below the table of cameras. Their own outputs are reported elsewhere."""
    if summary.frames.written:
        yield _rates(summary)
        yield from _stages(summary, console.width)
        yield Text(summary.verdict.sentence, style="bold")
    yield from map(Text, _remarks(summary))
    if isinstance(summary.memory, LiveMemory) and summary.memory.slope_mb_per_hour is not None:
        yield Text(f"memory: {live_memory_text(summary.memory)}")
    yield from map(Text, (*closing, *_session(summary)))


def _remarks(summary: Summary) -> Iterator[str]:
    shown, hidden = _notes(summary)
    yield from (f"note: {note}" for note in shown)
    if hidden:
        yield f"{counted(hidden, 'more note')}: use -v or see the report"


def _found(summary: Summary) -> Iterator[str]:
    """A line for each source, and one for what went wrong with it."""
    each = summary.each
    if summary.sources:
        found = _detections(summary)
        yield f"{len(each)} sources{BESIDE}{_frames(summary)}{BESIDE}{found}"
        for source in each[:SOURCES_SHOWN]:
            said = "" if source.exit.code == 0 else f", {source.exit.reason}"
            yield f"  {_name(source)}: {counted(source.frames.written, 'frame')}{said}"
        if len(each) > SOURCES_SHOWN:
            yield f"  and {counted(len(each) - SOURCES_SHOWN, 'more source')}"
    else:
        if summary.frames.read or each[0].exit.code in (EXIT_DONE, *SAID_HERE):
            yield f"{_name(each[0])}{BESIDE}{_frames(summary)}{BESIDE}{_detections(summary)}"
        if each[0].exit.code in SAID_HERE:
            yield f"exit {each[0].exit.code}: {each[0].exit.reason}"
    yield from zone_lines(summary)
    for source in each:
        yield from (f"kept from the failed run: {path}" for path in source.partial_outputs)


def zone_lines(summary: Summary) -> Iterator[str]:
    """A line for each line and zone, with what it counted (--zones)."""
    several = len(summary.each) > 1
    shown = [(source, zone) for source in summary.each for zone in source.zones or ()]
    for source, zone in shown[:ZONES_SHOWN]:
        where = f"{_name(source)}: " if several else f"{zone.camera}: " if zone.camera else ""
        called = dict(zip(("in", "out"), zone.sides, strict=True))
        told = [
            f"{name} {', '.join(f'{called.get(kind, kind)} {n}' for kind, n in sums.items() if n)}"
            for name, sums in zone.counts.items()
            if any(sums.values())
        ]
        there = [count for count in zone.most.values() if count]
        none = NOT_CROSSED if zone.kind == "line" and source.detections.by_class else "nothing"
        most = f"; at most {there[0]} at once" if len(there) == 1 else ""
        yield f"{where}{zone.name}: {'; '.join(told) or none}{most}"
    if len(shown) > ZONES_SHOWN:
        yield f"and {len(shown) - ZONES_SHOWN} more lines and zones; see summary.json"


def _name(source: SourceSummary) -> str:
    return Path(source.video.path).name or source.video.path


def _frames(summary: Summary) -> str:
    frames = summary.frames
    pictures = {source.video.kind for source in summary.each} == {"pictures"}
    noun = "image" if pictures else "frame"
    text = _many(frames.written, noun)
    if frames.read != frames.written:
        text = f"{frames.written:,} of {_many(frames.read, noun)}"
    text += f", {frames.reused:,} reused" if frames.reused else ""
    return text + (f", {frames.coasted:,} not inferred" if frames.coasted else "")


def _detections(summary: Summary) -> str:
    found = summary.detections
    classes = list(found.by_class.items())
    shown, rest = classes[:CLASSES_SHOWN], classes[CLASSES_SHOWN:]
    text = _many(found.total, "detection")
    if len(classes) > 1:
        more = f", {sum(count for _, count in rest):,} of {len(rest)} others" if rest else ""
        text += f" ({', '.join(f'{count:,} {name}' for name, count in shown)}{more})"
    elif classes:
        text = f"{text}: {classes[0][0]}"
    if found.empty:
        text += f"; {_many(found.empty, 'image')} without any"
    if found.cut_by_max_det:
        text += f"; {found.cut_by_max_det:,} more cut by --max-det"
    return text


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def _rates(summary: Summary) -> Text:
    fps = [f"{_rate(summary.fps.end_to_end)} FPS end to end"]
    fps += [f"{_rate(summary.fps.inference)} FPS inference"]
    if summary.fps.device is not None:
        fps += [f"{_rate(summary.fps.device)} FPS device"]
    batch = f" · batch {summary.batch}" if summary.batch > 1 else ""
    batch += f" · {summary.tiles} inputs per frame" if summary.tiles > 1 else ""
    where = f" on {summary.device}" if summary.device else ""
    what = f"{summary.model} · {summary.engine} {summary.precision}{where} · {input_text(summary)}"
    what += batch
    return Text.assemble((", ".join(fps), "bold"), f"{BESIDE}{what}")


def _rate(fps: float | None) -> str:
    if fps is None:
        return "-"
    return f"{fps:.0f}" if fps >= 100 else f"{fps:.3g}"


def _stages(summary: Summary, width: int) -> Iterator[Text]:
    """Milliseconds per frame, in the order of a frame's way; those behind inference below."""
    rows = [row for row in stage_rows(summary, summary.frames.written) if row.busy_ms is not None]
    line = f"  ms per frame{'' if summary.sync else ' (stages overlap)'}:"
    for before, row in zip((None, *rows), rows, strict=False):
        word = f" {row.stage} {row.busy_ms:.1f}{',' if row is not rows[-1] else ''}"
        first = before and is_after_inference(row.stage) > is_after_inference(before.stage)
        if first or cell_len(line) + cell_len(word) > width:
            yield Text(line)
            line = "   "
        line += word
    yield Text(line)


def _bars(console: SafeConsole, summary: Summary) -> Iterator[Text]:
    """Yield how busy each group of threads was, and which one limits the run."""
    limit = summary.verdict.bottleneck
    limiting = None if limit is None else group_of(limit)
    rows = list(_busy(summary))
    most = max((share for *_, share in rows), default=0.0)
    # The verdict is by gain, without waits for a core, which a busy share includes.
    why = "" if (limiting, most) in [(row[0], row[2]) for row in rows] else " (most to gain)"
    label = max((cell_len(name) for _, name, _ in rows), default=0)
    letters = FULL if "utf" in (console.encoding or "").lower() else EMPTY
    room = console.width - label - len(f"  100% busy   <- preprocess limits this run{why}") - 4
    size = max(LEAST_BAR, min(BAR, room))
    for group, name, share in rows:
        full = round(share * size)
        bar = letters[0] * full + letters[1] * (size - full)
        mark = f"   <- {limit} limits this run{why}" if group == limiting else ""
        yield Text.assemble(
            f"  {name:<{label}}  {bar}  {share:.0%} busy", (mark, "bold" if mark else "")
        )


def _busy(summary: Summary) -> Iterator[tuple[str, str, float]]:
    """Group, name and busy share of its threads. In the plain loop one thread does all."""
    if summary.sync:
        for name, thread in summary.threads.items():
            if thread.wall_s:
                limit = summary.verdict.bottleneck
                yield (group_of(limit) if limit else "", name, thread.busy_s / thread.wall_s)
        return
    for group in GROUPS:
        names = [name for name in summary.threads if THREADS.get(name.split("-")[0]) == group]
        threads = [summary.threads[name] for name in names]
        wall = sum(thread.wall_s for thread in threads)
        if not wall:
            continue
        name = names[0] if len(names) == 1 else f"{len(names)} workers"
        share = min(1.0, sum(thread.busy_s for thread in threads) / wall)
        yield group, name.replace("worker-0", "worker"), share


def _advice(summary: Summary) -> Iterator[str]:
    """Yield what to type next, a line each. They promise only what the run itself measured."""
    verdict = summary.verdict
    if verdict.bottleneck is None:
        yield verdict.sentence
        return
    tries = []
    if verdict.smaller_input:
        height, width = verdict.smaller_input
        tries.append(f"--size {width}x{height} (misses more small objects)")
    if verdict.advice and verdict.bottleneck != INFER:
        tries.append(verdict.advice.replace("`", ""))
    path = summary.each[0].video.path
    if os.path.exists(path):  # a pipe comes once; an address may stand here without its login
        tries.append(f"detect-video tune {shlex.quote(path)}")
    for number, one in enumerate(tries):
        yield f"{'        or ' if number else 'Faster: '}{one}"


def _notes(summary: Summary) -> tuple[Sequence[str], int]:
    """The notes needed now, and how many others there are: setup is news the first time only."""
    background = set(summary.background)
    notes = [note for at, note in enumerate(summary.notes) if at not in background]
    if summary.precision_effect:
        notes.insert(0, f"precision: {summary.precision_effect}")
    return notes[:NOTES_SHOWN], len(notes) - len(notes[:NOTES_SHOWN])


def _written(summary: Summary) -> Iterator[str]:
    paths = [path for source in summary.each for path in source.outputs.values()]
    if len(paths) > SOURCES_SHOWN:
        folders = sorted({str(Path(path).parent) for path in paths})
        yield f"-> {counted(len(paths), 'file')} in {', '.join(folders[:SOURCES_SHOWN])}"
    else:
        yield from (f"-> {path}{_why_numbered(path, paths)}" for path in paths)
    yield from _session(summary)


def _why_numbered(path: str, paths: Sequence[str]) -> str:
    plain = re.sub(r"(-detected)-\d+(?=\.\w+$|$)", r"\1", path)
    is_kept = plain not in paths and os.path.exists(plain)
    return f" ({Path(plain).name} is kept: not of these settings)" if is_kept else ""


def _session(summary: Summary) -> Iterator[str]:
    if summary.session:
        folder = Path(summary.session)
        newest = "" if folder.parent == Path("runs") else f" {shorten(summary.session, 200)}"
        yield f"details: detect-video report{newest}"
