"""Summarize a run in at most twenty lines. ``run.py`` prints all figures if -v is given."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.text import Text

from detector.core.analysis.ledger import stage_rows
from detector.core.analysis.summary import input_text
from detector.core.analysis.verdict import describe_others
from detector.core.errors import EXIT_DAMAGED, EXIT_DONE, STOPPED_CODES
from detector.core.errors.text import counted
from detector.core.session.document import SourceSummary, Summary
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.progress import shorten
from detector.core.timeline.order import GROUPS, THREADS, group_of, is_after_inference
from detector.core.timeline.spans import INFER

# The summary explains only these exit codes. The reasons of failures go to stderr.
EXPLAINED = (EXIT_DAMAGED, *STOPPED_CODES)
SOURCES_SHOWN = 6
CLASSES_SHOWN = 4
ZONES_SHOWN = 8
NOTES_SHOWN = 4
NOT_CROSSED = "nothing crossed it; does it lie across the objects' path?"
WIDEST_BAR, NARROWEST_BAR = 26, 10  # characters
BLOCKS, ASCII_BLOCKS = ("█", "░"), ("#", ".")  # full and empty parts of a bar
GAP = "   "


def brief_lines(
    console: SafeConsole, summary: Summary, closing: Sequence[str] = (), faster: Sequence[str] = ()
) -> Iterator[Text]:
    """Yield the lines. ``closing``: lines of other packages (wings.py). ``faster``: lines about
    faster settings that were measured; they replace the advice."""
    yield from map(Text, _result_lines(summary))
    if summary.frames.written:
        yield _rates_line(summary)
        if not _has_only_pictures(summary):
            yield from _stage_lines(summary, console.width)
            yield from _bar_lines(console, summary)
            if others := describe_others(summary.verdict.others_cores, summary.cpu.cores):
                yield Text(f"{others.capitalize()}, which slowed this run.")
            yield from map(Text, faster or _advice_lines(summary))
    yield from map(Text, (*_note_lines(summary), *closing, *_output_lines(summary)))


def camera_lines(console: SafeConsole, summary: Summary, closing: Sequence[str]) -> Iterator[Text]:
    """Yield the lines below the table of cameras. They do not include paths of outputs."""
    if summary.frames.written:
        yield _rates_line(summary)
        yield from _stage_lines(summary, console.width)
        yield Text(summary.verdict.sentence, style="bold")
    yield from map(Text, _note_lines(summary))
    yield from map(Text, (*closing, *_session_lines(summary)))


def _note_lines(summary: Summary) -> Iterator[str]:
    shown, hidden = _select_notes(summary)
    yield from (f"note: {note}" for note in shown)
    if hidden:
        yield f"{counted(hidden, 'more note')}: use -v or see the report"


def _result_lines(summary: Summary) -> Iterator[str]:
    each = summary.each
    counts = f"{GAP}{_describe_frames(summary)}{GAP}{_describe_detections(summary)}"
    if summary.sources:
        yield f"{len(each)} sources{counts}"
        for source in each[:SOURCES_SHOWN]:
            reason = "" if source.exit.code == 0 else f", {source.exit.reason}"
            yield f"  {_name(source)}: {counted(source.frames.written, 'frame')}{reason}"
        if len(each) > SOURCES_SHOWN:
            yield f"  and {counted(len(each) - SOURCES_SHOWN, 'more source')}"
    else:
        if summary.frames.read or each[0].exit.code in (EXIT_DONE, *EXPLAINED):
            yield f"{_name(each[0])}{counts}"
        if each[0].exit.code in EXPLAINED:
            yield f"exit {each[0].exit.code}: {each[0].exit.reason}"
    yield from zone_lines(summary)
    for source in each:
        yield from (f"kept from the failed run: {path}" for path in source.partial_outputs)


def zone_lines(summary: Summary) -> Iterator[str]:
    several = len(summary.each) > 1
    zones = [(source, zone) for source in summary.each for zone in source.zones or ()]
    for source, zone in zones[:ZONES_SHOWN]:
        where = f"{_name(source)}: " if several else f"{zone.camera}: " if zone.camera else ""
        sides = dict(zip(("in", "out"), zone.sides, strict=True))
        counts = [
            f"{name} {', '.join(f'{sides.get(kind, kind)} {n}' for kind, n in sums.items() if n)}"
            for name, sums in zone.counts.items()
            if any(sums.values())
        ]
        peaks = [count for count in zone.most.values() if count]
        none = NOT_CROSSED if zone.kind == "line" and source.detections.by_class else "nothing"
        most = f"; at most {peaks[0]} at once" if len(peaks) == 1 else ""
        yield f"{where}{zone.name}: {'; '.join(counts) or none}{most}"
    if len(zones) > ZONES_SHOWN:
        yield f"and {len(zones) - ZONES_SHOWN} more lines and zones; see summary.json"


def _name(source: SourceSummary) -> str:
    return Path(source.video.path).name or source.video.path


def _has_only_pictures(summary: Summary) -> bool:
    return {source.video.kind for source in summary.each} == {"pictures"}


def _describe_frames(summary: Summary) -> str:
    frames = summary.frames
    noun = "image" if _has_only_pictures(summary) else "frame"
    text = _format_count(frames.written, noun)
    if frames.read != frames.written:
        text = f"{frames.written:,} of {_format_count(frames.read, noun)}"
    text += f", {frames.reused:,} reused" if frames.reused else ""
    return text + (f", {frames.coasted:,} not inferred" if frames.coasted else "")


def _describe_detections(summary: Summary) -> str:
    counts = summary.detections
    classes = list(counts.by_class.items())
    shown, rest = classes[:CLASSES_SHOWN], classes[CLASSES_SHOWN:]
    text = _format_count(counts.total, "detection")
    if len(classes) > 1:
        if len(rest) == 1:
            shown, rest = classes, []
        more = f", {sum(count for _, count in rest):,} in {len(rest)} other classes" if rest else ""
        text += f" ({', '.join(f'{count:,} {name}' for name, count in shown)}{more})"
    elif classes:
        text = f"{text}: {classes[0][0]}"
    if counts.empty:
        text += f"; {_format_count(counts.empty, 'image')} without any"
    if counts.cut_by_max_det:
        text += f"; {counts.cut_by_max_det:,} more cut by --max-det"
    return text


def _format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def _rates_line(summary: Summary) -> Text:
    fps = [f"{_format_rate(summary.fps.end_to_end)} FPS end to end"]
    fps += [f"{_format_rate(summary.fps.inference)} FPS inference"]
    if summary.fps.device is not None:
        fps += [f"{_format_rate(summary.fps.device)} FPS device"]
    batch = f" · batch {summary.batch}" if summary.batch > 1 else ""
    batch += f" · {summary.tiles} inputs per frame" if summary.tiles > 1 else ""
    where = f" on {summary.device}" if summary.device else ""
    what = f"{summary.model} · {summary.engine} {summary.precision}{where} · {input_text(summary)}"
    what += batch
    return Text.assemble((", ".join(fps), "bold"), f"{GAP}{what}")


def _format_rate(fps: float | None) -> str:
    if fps is None:
        return "-"
    return f"{fps:.0f}" if fps >= 100 else f"{fps:.3g}"


def _stage_lines(summary: Summary, width: int) -> Iterator[Text]:
    """Yield lines with each stage's ms per frame. A new line begins after inference."""
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


def _bar_lines(console: SafeConsole, summary: Summary) -> Iterator[Text]:
    """Yield bars: how busy each group of threads was, and which group limits the run."""
    limit = summary.verdict.bottleneck
    limiting = None if limit is None else group_of(limit)
    rows = list(_busy_shares(summary))
    most = max((share for *_, share in rows), default=0.0)
    # The verdict names the stage whose speed-up would gain most. Another group of threads may be
    # busier here, since the shares include waiting for cores.
    why = "" if (limiting, most) in [(row[0], row[2]) for row in rows] else " (most to gain)"
    label = max((cell_len(name) for _, name, _ in rows), default=0)
    full, empty = BLOCKS if "utf" in (console.encoding or "").lower() else ASCII_BLOCKS
    room = console.width - label - len(f"  100% busy   <- preprocess limits this run{why}") - 4
    size = max(NARROWEST_BAR, min(WIDEST_BAR, room))
    for group, name, share in rows:
        filled = round(share * size)
        bar = full * filled + empty * (size - filled)
        mark = f"   <- {limit} limits this run{why}" if group == limiting else ""
        yield Text.assemble(
            f"  {name:<{label}}  {bar}  {share:.0%} busy", (mark, "bold" if mark else "")
        )


def _busy_shares(summary: Summary) -> Iterator[tuple[str, str, float]]:
    """Yield (group, name of its threads, busy share). With --sync, one thread does all."""
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


def _advice_lines(summary: Summary) -> Iterator[str]:
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
    if os.path.exists(path):  # ``tune`` cannot reread a pipe; an address here lacks its login
        tries.append(f"detect-video tune {shlex.quote(path)}")
    for number, advice in enumerate(tries):
        yield f"{'        or ' if number else 'Faster: '}{advice}"


def _select_notes(summary: Summary) -> tuple[Sequence[str], int]:
    """Return the first notes and the number of other notes. Omit notes about the setup."""
    background = set(summary.background)
    notes = [note for at, note in enumerate(summary.notes) if at not in background]
    if summary.precision_effect:
        notes.insert(0, f"precision: {summary.precision_effect}")
    return notes[:NOTES_SHOWN], len(notes) - len(notes[:NOTES_SHOWN])


def _output_lines(summary: Summary) -> Iterator[str]:
    paths = [path for source in summary.each for path in source.outputs.values()]
    if len(paths) > SOURCES_SHOWN:
        folders = sorted({str(Path(path).parent) for path in paths})
        yield f"-> {counted(len(paths), 'file')} in {', '.join(folders[:SOURCES_SHOWN])}"
    else:
        yield from (f"-> {path}{_explain_number(path, paths)}" for path in paths)
    yield from _session_lines(summary)


def _explain_number(path: str, paths: Sequence[str]) -> str:
    plain = re.sub(r"-\d+(?=\.\w+$|$)", "", path)
    stem = Path(plain).stem
    is_numbered = stem.endswith("-detected") or stem in (Path(other).stem for other in paths)
    is_kept = is_numbered and plain not in paths and os.path.exists(plain)
    return f" ({Path(plain).name} is kept: its run had other options)" if is_kept else ""


def _session_lines(summary: Summary) -> Iterator[str]:
    if summary.session:
        folder = Path(summary.session)
        newest = "" if folder.parent == Path("runs") else f" {shorten(summary.session, 200)}"
        yield f"details: detect-video report{newest}"
