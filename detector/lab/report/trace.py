"""Write a session as a trace for Perfetto ("Trace Event Format", Google, 2016): a track per thread,
a flow per frame, and queue counters. Times are microseconds since 1970."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

from detector.core.timeline.spans import INFER, READ
from detector.lab.analysis.loop.activities import (
    Activity,
    Batches,
    LoopShape,
    activities_of,
    depths,
)
from detector.lab.session.read import SavedSession

Event = dict[str, Any]


def trace(session: SavedSession, compressed: bool = True) -> bytes:
    """Return JSON, gzipped if ``compressed``. The same session always gives the same bytes."""
    document = {
        "traceEvents": [one | {"pid": session.document.pid} for one in events(session)],
        "displayTimeUnit": "ms",
        "otherData": {
            "model": session.document.model,
            "engine": session.document.engine,
            "precision": session.document.precision,
        },
    }
    content = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    return gzip.compress(content, mtime=0) if compressed else content


def events(session: SavedSession) -> Iterator[Event]:
    clocks = session.document.clocks

    def to_us(ns: int) -> float:
        return (ns + clocks.unix_ns - clocks.perf_counter_ns) / 1e3

    threads = {
        name: number + 1 for number, name in enumerate(session.spans["thread_names"].tolist())
    }
    yield {"ph": "M", "name": "process_name", "args": {"name": "detect-video"}}
    for name, tid in threads.items():
        yield {"ph": "M", "tid": tid, "name": "thread_name", "args": {"name": name}}
    yield from _slices(session, to_us)
    for source, loop in enumerate(session.document.loop):
        if loop:
            activities, shape = activities_of(session.spans, source), LoopShape.of(loop)
            yield from _flows(activities, shape, source, threads, to_us)
            yield from _counters(activities, shape, to_us)


def _slices(session: SavedSession, to_us: Any) -> Iterator[Event]:
    columns = session.spans
    stages, kinds = columns["stage_names"].tolist(), columns["kind_names"].tolist()
    names = ("thread", "stage", "kind", "source", "index", "start_ns", "end_ns")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    for thread, stage, kind, source, index, start, end in rows:
        if kinds[kind] == "other":
            continue  # the trace shows other time as a gap between slices
        name = stages[stage] if kinds[kind] == "work" else f"wait for {stages[stage]}"
        yield {
            "ph": "X",
            "tid": thread + 1,
            "name": name,
            "cat": kinds[kind],
            "ts": to_us(start),
            "dur": (end - start) / 1e3,
            "args": {"batch" if stages[stage] == INFER else "number": index, "source": source},
        }


def _flows(
    activities: list[Activity], shape: LoopShape, source: int, threads: dict[str, int], to_us: Any
) -> Iterator[Event]:
    """Yield an arrow for each frame. It goes through the middle of each of the frame's calls."""
    frames: dict[int, list[Activity]] = {}
    batches = Batches(activities, shape)
    infers = {one.number: one for one in activities if one.stage == INFER}  # batch -> its call
    for one in activities:
        if one.stage != INFER:
            frames.setdefault(one.number, []).append(one)
    for frame, calls in frames.items():
        batch = infers.get(batches.of(frame))
        if batch is None or all(one.stage == READ for one in calls):
            continue  # the read at the end of the source returned no frame
        chain = sorted([*calls, batch], key=lambda one: one.start_ns)
        for at, one in enumerate(chain):
            phase = "s" if at == 0 else "f" if at == len(chain) - 1 else "t"
            event = {
                "ph": phase,
                "tid": threads[one.thread],
                "name": "frame",
                "cat": "frame",
                "id": f"{source}.{frame}",
                "ts": to_us((one.start_ns + one.end_ns) // 2),
            }
            yield event | ({"bp": "e"} if phase == "f" else {})


def _counters(activities: list[Activity], shape: LoopShape, to_us: Any) -> Iterator[Event]:
    for name, (times, levels) in depths(activities, shape).items():
        for when, level in zip(times.tolist(), levels.tolist(), strict=True):
            yield {"ph": "C", "tid": 0, "name": name, "ts": to_us(when), "args": {"depth": level}}
