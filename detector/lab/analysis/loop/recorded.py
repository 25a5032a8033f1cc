"""Compute facts from an nsys recording, with the names that sessions use for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import UsageError
from detector.core.errors.text import counted
from detector.core.timeline.spans import KINDS, WORK
from detector.lab.analysis.layers import merge
from detector.lab.analysis.loop.activities import (
    Activity,
    LoopShape,
    activities_of,
    activity_graph,
    step_rows,
)
from detector.lab.analysis.loop.calls import call_rows
from detector.lab.analysis.loop.critical_path import CriticalPath, critical_path
from detector.lab.analysis.loop.dependency import dependency_rows
from detector.lab.session.nsys import NsysRun
from detector.lab.session.profile import GpuBusy, NsysDocument, RecordedRun


def recorded_facts(runs: Sequence[NsysRun], number: int | None = None) -> NsysDocument:
    """Return the facts of run ``number`` (from 1), or of the run with the most frames."""
    if number is None:
        number = 1 + max(range(len(runs)), key=lambda at: (not runs[at].outside, runs[at].frames))
    elif not 1 <= number <= len(runs):
        raise UsageError(f"--nsys-run {number}: the recording has {counted(len(runs), 'run')}")
    recorded = runs[number - 1]
    activities = activities_of(recorded.columns)
    path = (
        critical_path(activity_graph(activities, LoopShape.of(recorded.loop)))
        if activities
        else None
    )
    waits = wait_seconds(recorded.columns)
    blocked = blocked_seconds(activities, recorded.blocked)
    return NsysDocument(
        run=number,
        runs=[
            RecordedRun(
                one.process,
                one.program,
                one.frames,
                (one.end_ns - one.start_ns) / 1e9,
                one.ranges,
                one.open,
                one.outside,
            )
            for one in runs
        ],
        stages=step_rows(recorded.columns),
        waits=waits,
        blocked=blocked,
        critical_path=path.facts() if path else None,
        dependency=(
            dependency_rows(path, activities, recorded.blocked, blocked, waits) if path else []
        ),
        calls=call_rows(recorded.cuda, recorded.device, _find_phases(recorded, activities, path)),
        loop=recorded.loop,
        loop_is_known=recorded.loop_is_known,
        gpu=gpu_busy(recorded.kernels, activities),
    )


def _find_phases(
    recorded: NsysRun, activities: Sequence[Activity], path: CriticalPath | None
) -> list[int]:
    """Return the four bounds of start-up, the critical path's steady state, and tear-down."""
    begin = min((one.start_ns for one in activities), default=recorded.start_ns)
    until = recorded.end_ns
    if path is not None:
        begin += path.startup_ns
        until = begin + path.wall_ns
    starts = [one.start for one in recorded.cuda] + [one.start for one in recorded.device]
    ends = [one.end for one in recorded.cuda] + [one.end for one in recorded.device]
    return [min([begin, *starts]), begin, until, max([until, *ends])]


def wait_seconds(columns: dict[str, Any]) -> dict[str, dict[str, float]]:
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    threads, stages = columns["thread_names"].tolist(), columns["stage_names"].tolist()
    picked = columns["kind"] != KINDS.index(WORK)
    rows = zip(
        *(columns[name][picked].tolist() for name in ("thread", "stage", "start_ns", "end_ns")),
        strict=True,
    )
    for thread, stage, start, end in rows:
        seconds[threads[thread]][stages[stage]] += (end - start) / 1e9
    return {thread: dict(each) for thread, each in seconds.items()}


def blocked_seconds(
    activities: Sequence[Activity], calls: Sequence[tuple[str, str, int, int]]
) -> dict[str, dict[str, float]]:
    """Return stage -> system call -> seconds that the stage, on its thread, spent in the call."""
    blocked: dict[str, Counter[str]] = defaultdict(Counter)
    by_thread: dict[tuple[str, str], list[Activity]] = defaultdict(list)
    for one in activities:
        by_thread[one.thread, one.stage].append(one)
    for thread in dict.fromkeys(call[0] for call in calls):
        names = [call[1] for call in calls if call[0] == thread]
        times = np.array([call[2:] for call in calls if call[0] == thread], np.int64)
        for (own_thread, stage), own in by_thread.items():
            if own_thread == thread:
                inside = _sum_time_until(own, times[:, 1]) - _sum_time_until(own, times[:, 0])
                for name, ns in zip(names, inside.tolist(), strict=True):
                    blocked[stage][name] += ns
    return {
        stage: {name: ns / 1e9 for name, ns in each.most_common() if ns}
        for stage, each in blocked.items()
        if any(each.values())
    }


def _sum_time_until(own: Sequence[Activity], when: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each time in ``when`` [N], return the total ns that the activities had run by then."""
    starts = np.array([one.start_ns for one in own], np.int64)
    lengths = np.array([one.end_ns for one in own], np.int64) - starts
    before = np.concatenate([[0], np.cumsum(lengths)])
    at = np.searchsorted(starts, when, side="right") - 1  # the last activity that had started
    inside = np.minimum(when - starts[at], lengths[at])
    total: NDArray[np.int64] = np.where(at < 0, 0, before[at] + inside)
    return total


def gpu_busy(kernels: Sequence[tuple[int, int]], activities: Sequence[Activity]) -> GpuBusy:
    """Return the time with at least one running kernel, and its share of the run."""
    if not kernels or not activities:
        return GpuBusy(available=False, reason="the recording has no CUDA kernels")
    busy = sum(end - start for start, end in merge(kernels))
    wall = max(one.end_ns for one in activities) - min(one.start_ns for one in activities)
    return GpuBusy(
        available=True,
        kernels=len(kernels),
        busy_s=busy / 1e9,
        busy_share=busy / wall if wall else 0.0,
    )
