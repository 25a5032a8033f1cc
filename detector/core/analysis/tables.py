"""The tables of a run: its rates, the ledger of its stages, its threads, and its cameras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from detector.core.analysis.ledger import StageRow, stage_rows, thread_rows, unbooked_cpu_s
from detector.core.analysis.statistics import list_statistics
from detector.core.analysis.summary import input_text, streams_of
from detector.core.errors.text import counted
from detector.core.session.document import Rates, Summary
from detector.core.tables import Column, Table


def rates_table(summary: Summary, rounded: Callable[[float], float] = float) -> Table:
    """Return a table with one row: a run's settings and rates. ``rounded`` rounds each rate."""
    rates = {field.name: getattr(summary.fps, field.name) for field in fields(Rates)}
    optional = {field.name for field in fields(Rates) if field.default is not MISSING}
    known = {name: rate for name, rate in rates.items() if rate is not None or name not in optional}
    titles = {statistic.name: statistic.title for statistic in list_statistics(Rates)}
    row = {
        "model": summary.model,
        "engine": summary.engine,
        "precision": summary.precision,
        "input": input_text(summary),
        "batch": summary.batch,
        "video": _video_size(summary),
        "frames": summary.frames.written,
        **{name: None if rate is None else rounded(rate) for name, rate in known.items()},
    }
    columns = [
        Column("model"),
        Column("engine"),
        Column("precision", out=3),
        Column("input", "model input", out=2),
        Column("batch", out=4),
        Column("video", "video size", out=1),
        # "end_to_end" is the last of the rates.
        *(
            Column(name, titles[name], ".2f")
            for name in sorted(known, key=lambda name: (name == "end_to_end", name))
        ),
        Column("frames", out=5),
    ]
    return Table("lab", columns, [row])


def _video_size(summary: Summary) -> str:
    sizes = {source.video.size for source in summary.each} - {None}
    return sizes.pop() or "several" if len(sizes) == 1 else "several"


LEDGER = (
    Column("stage"),
    Column("busy_ms", "busy", ".2f", "ms"),
    Column("share", form=".1%", out=4),
    Column("p50_ms", "p50", ".2f", "ms", out=3),
    Column("p90_ms", "p90", ".2f", "ms", out=2),
    Column("p99_ms", "p99", ".2f", "ms", out=5),
    Column("on_cpu_ms", "on CPU", ".2f", "ms"),
    Column("ready_ms", "no core", ".2f", "ms"),
    Column("blocked_ms", "blocked", ".2f", "ms"),
    Column("cpu_ms", "all CPU", ".2f", "ms", out=6),
    Column("run_by", "thread", out=1),
)
LEDGER_NOTE = "share: of the threads' wall time; no core: waiting for one; all CPU: with libraries"
EMPTY = dict.fromkeys((column.key for column in LEDGER), "")


def ledger_table(summary: Summary, frames: int, libraries: bool = False) -> Table:
    """Return a table with a row per stage that ran, a row for the decoding of cameras and, with
    ``libraries``, a row for libraries' threads."""
    rows: list[StageRow | dict[str, Any]] = [*stage_rows(summary, frames)]
    stages = len(rows)
    if summary.decoding and summary.decoding.calls:
        # Decoding for cameras is not a stage of the loop: it includes pictures that are dropped.
        decoding = summary.decoding
        busy, cpu = (seconds * 1e3 / frames for seconds in (decoding.busy_s, decoding.cpu_s))
        threads = counted(decoding.threads, "camera")
        rows.append(
            EMPTY | {"stage": "decoding", "busy_ms": busy, "cpu_ms": cpu, "run_by": threads}
        )
    if libraries:
        inside = summary.cpu.stages_include_libraries
        seconds = summary.cpu.library_threads_s if inside else unbooked_cpu_s(summary)
        where = "counted above" if inside else "in no row above"
        row = {"stage": "libraries", "cpu_ms": seconds * 1e3 / frames, "run_by": where}
        rows.append(EMPTY | row)
    title = f"time per stage over {counted(frames, 'frame')}, ms per frame"
    dim = range(stages, len(rows))
    return Table("ledger", LEDGER, rows, title, LEDGER_NOTE, unit="ms", dim=dim)


THREADS = (
    Column("thread"),
    Column("busy_ms", "busy", ".2f", "ms"),
    Column("wait_input_ms", "input wait", ".2f", "ms"),
    Column("wait_output_ms", "output wait", ".2f", "ms"),
    Column("preempted_ms", "preempted", ".2f", "ms", out=4),
    Column("other_ms", "other", ".2f", "ms", out=5),
    Column("wall_ms", "wall", ".2f", "ms", out=6),
    Column("ready_ms", "no core", ".2f", "ms"),
    Column("foreign_ms", "no core, others", ".2f", "ms"),
    Column("lock_ms", "lock", ".2f", "ms", out=3),
    Column("rest", "unexplained", ".1%", out=2),
    Column("waits", "waited for", value=lambda row: ", ".join(row.waits), out=1),
)
THREADS_NOTE = (
    "busy + waits + preempted + other = wall; preempted: no core between two stages; "
    '"no core, others": another program held the core'
)


def threads_table(summary: Summary, frames: int) -> Table:
    rows = thread_rows(summary, frames)
    return Table("threads", THREADS, rows, "threads, ms per frame", THREADS_NOTE, unit="ms")


CAMERAS = (
    Column("name", "camera", longest=16),
    Column("size", value=lambda stream: stream.size or "-", right=True, out=3),
    Column(
        "fps",
        "FPS/sent",
        value=lambda stream: f"{_tenth(stream.processed_fps)}/{_tenth(stream.camera_fps)}",
        right=True,
    ),
    Column("dropped_share", "dropped", ".0%"),
    Column("age_ms.p50", "age p50", ".0f"),
    Column("age_ms.p90", "p90", ".0f", out=1),
    Column("age_ms.p99", "p99", ".0f"),
    Column("age_ms.max", "max ms", ".0f", out=2),
    Column("lost", value=lambda stream: stream.reconnects + stream.stalls, out=4),
)


def cameras_table(summary: Summary) -> Table:
    return Table("cameras", CAMERAS, streams_of(summary), "cameras")


def _tenth(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"
