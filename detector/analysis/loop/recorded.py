"""Facts of an nsys recording under the names that a session has for them, so that the two can be
compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from detector.analysis.loop.activities import (
    Activity,
    LoopShape,
    activities_of,
    activity_graph,
    step_rows,
)
from detector.analysis.loop.critical_path import critical_path
from detector.session.codec import to_builtins
from detector.session.nsys import Recorded
from detector.timeline import KINDS, WORK


def recorded_facts(recorded: Recorded) -> dict[str, Any]:
    """What ``profile --nsys`` prints: ``stages`` (StepRow), ``waits`` (thread -> what -> seconds),
    ``blocked`` (stage -> system call -> seconds inside it), ``critical_path``, ``gpu``."""
    activities = activities_of(recorded.columns)
    path = (
        critical_path(activity_graph(activities, LoopShape.of(recorded.loop)))
        if activities
        else None
    )
    return {
        "schema": 1,
        "stages": to_builtins(step_rows(recorded.columns)),
        "waits": wait_seconds(recorded.columns),
        "blocked": blocked_seconds(activities, recorded.blocked),
        "critical_path": to_builtins(path.facts()) if path else None,
        "loop": recorded.loop,
        "loop_is_known": recorded.loop_is_known,
        "gpu": gpu_busy(recorded.kernels, activities),
    }


def wait_seconds(columns: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Thread -> what it waited for -> seconds."""
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


def blocked_seconds(
    activities: Sequence[Activity], calls: Sequence[tuple[str, str, int, int]]
) -> dict[str, dict[str, float]]:
    """Stage -> system call -> seconds that the stage spent in it, on the stage's own thread. Of a
    call that lasted longer, only the part within the stage counts."""
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
    """The time in which at least one kernel ran, and its share of the run."""
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
