"""Facts of an nsys recording, in the same words as those of a session: so that the two can be laid side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from detector.analysis.loop.activities import (
    Activity,
    LoopShape,
    activities_of,
    activity_graph,
    step_rows_of,
)
from detector.analysis.loop.critical_path import critical_path
from detector.session.codec import to_builtins
from detector.session.nsys import Recorded
from detector.timeline import KINDS, WORK


def recorded_facts(recorded: Recorded) -> dict[str, Any]:
    """``stages``, ``waits`` (thread -> what -> seconds), ``blocked`` (stage -> system call -> seconds inside it),
    ``critical_path``, ``gpu``."""
    activities = activities_of(recorded.columns)
    path = (
        critical_path(activity_graph(activities, LoopShape.of(recorded.loop)))
        if activities
        else None
    )
    return {
        "schema": 1,
        "stages": step_rows_of(recorded.columns),
        "waits": waits(recorded.columns),
        "blocked": blocked_inside(activities, recorded.blocked),
        "critical_path": to_builtins(path.facts()) if path else None,
        "loop": recorded.loop,
        "loop_is_known": recorded.loop_is_known,
        "gpu": gpu_busy(recorded.kernels, activities),
    }


def waits(columns: dict[str, Any]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    threads, stages = columns["thread_names"].tolist(), columns["stage_names"].tolist()
    picked = columns["kind"] != KINDS.index(WORK)
    rows = zip(
        *(columns[name][picked].tolist() for name in ("thread", "stage", "start_ns", "end_ns")),
        strict=True,
    )
    for thread, stage, start, end in rows:
        found[threads[thread]][stages[stage]] += (end - start) / 1e9
    return {thread: dict(each) for thread, each in found.items()}


def blocked_inside(
    activities: Sequence[Activity], calls: Sequence[tuple[str, str, int, int]]
) -> dict[str, dict[str, float]]:
    """Seconds that each stage spent inside system calls on its own thread; only the part that lies in the stage."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_thread: dict[str, list[Activity]] = defaultdict(list)
    for one in activities:
        by_thread[one.thread].append(one)
    for thread, name, start, end in calls:
        for one in by_thread.get(thread, ()):
            inside = min(end, one.end_ns) - max(start, one.start_ns)
            if inside > 0:
                found[one.stage][name] += inside / 1e9
    return {
        stage: dict(sorted(each.items(), key=lambda item: -item[1]))
        for stage, each in found.items()
    }


def gpu_busy(kernels: Sequence[tuple[int, int]], activities: Sequence[Activity]) -> dict[str, Any]:
    """The union of all kernels over the run; absent where none was recorded."""
    if not kernels or not activities:
        return {"available": False, "reason": "the recording has no CUDA kernels"}
    busy, until = 0, 0
    for start, end in sorted(kernels):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    wall = max(one.end_ns for one in activities) - min(one.start_ns for one in activities)
    return {
        "available": True,
        "kernels": len(kernels),
        "busy_s": busy / 1e9,
        "busy_share": busy / wall,
    }
