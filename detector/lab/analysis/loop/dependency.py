"""Make a table like that of nvprof's ``--dependency-analysis``: for each stage, system call and
wait of the loop, the time on the critical path and the waiting time off the path. Shares are of the
whole run; start-up and tear-down have their own rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from detector.lab.analysis.loop.activities import Activity
from detector.lab.analysis.loop.critical_path import CriticalPath
from detector.lab.session.profile import DependencyRow

STARTUP, TEARDOWN, HAND_OVER = "<start-up>", "<tear-down>", "<hand-over>"
"""Hand-over: the time from the end of a call on the path to the start of the next."""

Call = tuple[str, str, int, int]
"""Thread, name, start and end; both times are in nanoseconds."""


def dependency_rows(
    path: CriticalPath,
    activities: Sequence[Activity],
    calls: Sequence[Call],
    blocked: Mapping[str, Mapping[str, float]],
    waits: Mapping[str, Mapping[str, float]],
) -> list[DependencyRow]:
    """Return the rows, sorted by seconds on the path. These seconds add up to the run's time.

    ``calls``: system calls on the loop's threads. ``blocked``: stage -> call -> seconds. ``waits``:
    thread -> queue -> seconds. A system call's waiting time is its time off the path.
    """
    on_path = Counter({STARTUP: path.startup_ns, TEARDOWN: path.teardown_ns})
    by_thread: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call[2]):
        by_thread[call[0]].append(call)
    until = min((one.start_ns for one in activities), default=0) + path.startup_ns + path.wall_ns
    for step in path.steps:  # from the last to the first
        one = activities[step.at]
        inside = _sum_inside(by_thread[one.thread], until - step.self_ns, until)
        for name, ns in inside.items():
            on_path[_name_in_stage(name, one.stage)] += ns
        on_path[one.stage] += step.self_ns - sum(inside.values())
        on_path[HAND_OVER] += step.wait_ns
        until -= step.self_ns + step.wait_ns
    waited: Counter[str] = Counter()
    for stage, each in blocked.items():
        for call_name, seconds in each.items():
            name = _name_in_stage(call_name, stage)
            waited[name] += max(0, round(seconds * 1e9) - on_path[name])
    for each in waits.values():
        for queue, seconds in each.items():
            waited[f"wait for {queue}"] += round(seconds * 1e9)
    total = sum(on_path.values()) or 1
    names = sorted({*on_path, *waited}, key=lambda name: (-on_path[name], -waited[name], name))
    return [
        DependencyRow(name, on_path[name] / total, on_path[name] / 1e9, waited[name] / 1e9)
        for name in names
        if on_path[name] or waited[name]
    ]


def _name_in_stage(call: str, stage: str) -> str:
    return f"{call} ({stage})"


def _sum_inside(calls: Sequence[Call], start: int, end: int) -> Counter[str]:
    """Return name -> ns of a thread's outermost calls in a period. ``calls``: sorted by start."""
    sums: Counter[str] = Counter()
    free = start
    for _, name, begins, ends in calls:
        if begins >= end:
            break
        lasted = min(ends, end) - max(begins, free)
        if lasted > 0:
            sums[name] += lasted
            free = max(free, min(ends, end))
    return sums
