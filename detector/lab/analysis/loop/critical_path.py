"""The critical path: the chain of calls and hand-overs that fills the steady state of a run.

It is walked backwards from the last frame of the steady state. Each call leads to the predecessor
that ended last. The time between these two calls (waking a thread, a lock, the interpreter) is a
hand-over: a wait of the later call. Self times and waits add up to the wall time exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from detector.core.timeline.spans import READ
from detector.lab.analysis.loop.activities import (
    PROGRAM,
    ActivityGraph,
    LoopShape,
    activities_of,
    activity_graph,
    frames_written,
)
from detector.lab.session.passes import CriticalPathFacts, PathStage
from detector.lab.session.read import SavedSession


class PathCall(NamedTuple):
    """A call on the path. ``wait_ns``: from the end of the awaited call to this one's start."""

    at: int
    self_ns: int
    wait_ns: int
    cause: str


@dataclass(slots=True)
class StageOnPath:
    calls: int = 0
    self_ns: int = 0
    wait_ns: int = 0
    causes: Counter[str] = field(default_factory=Counter)  # nanoseconds of waiting by cause


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The path of the steady state, between the two times that ``_find_steady_state`` returns."""

    steps: Sequence[PathCall]
    stages: dict[str, StageOnPath]
    wall_ns: int
    startup_ns: int
    teardown_ns: int
    frames: int  # written in the steady state

    def self_check(self) -> None:
        total = sum(stage.self_ns + stage.wait_ns for stage in self.stages.values())
        if total != self.wall_ns:
            raise AssertionError(
                f"the critical path does not add up: {total} ns of {self.wall_ns} ns"
            )

    def facts(self) -> CriticalPathFacts:
        wall = self.wall_ns or 1
        rows = sorted(self.stages.items(), key=lambda item: -(item[1].self_ns + item[1].wait_ns))
        return CriticalPathFacts(
            wall_s=self.wall_ns / 1e9,
            startup_s=self.startup_ns / 1e9,
            teardown_s=self.teardown_ns / 1e9,
            frames=self.frames,
            stages=[
                PathStage(
                    name=name,
                    share=(stage.self_ns + stage.wait_ns) / wall,
                    self_s=stage.self_ns / 1e9,
                    wait_s=stage.wait_ns / 1e9,
                    calls=stage.calls,
                    wait_causes={cause: ns / 1e9 for cause, ns in stage.causes.most_common()},
                )
                for name, stage in rows
            ],
        )


def find_path(session: SavedSession, source: int = 0) -> CriticalPath | None:
    activities = activities_of(session.spans, source)
    if not activities:
        return None
    shape = LoopShape.of(session.document.loop[source])
    return critical_path(activity_graph(activities, shape))


def critical_path(graph: ActivityGraph) -> CriticalPath | None:
    written = frames_written(graph.activities)
    if not len(written):
        return None
    began = min(one.start_ns for one in graph.activities)
    ended = max(one.end_ns for one in graph.activities)
    start, end = _find_steady_state(graph, written.tolist())
    last = max(
        (at for at, one in enumerate(graph.activities) if one.end_ns <= end),
        key=lambda at: graph.activities[at].end_ns,
    )
    steps = _walk(graph, last, start, end)
    path = CriticalPath(
        steps,
        _sum_by_stage(graph, steps),
        end - start,
        start - began,
        ended - end,
        sum(start < when <= end for when in written.tolist()),
    )
    path.self_check()
    return path


def _find_steady_state(graph: ActivityGraph, written: list[int]) -> tuple[int, int]:
    """Return the ends of the first frame and of the last frame that ended before the last read."""
    reads = [one.start_ns for one in graph.activities if one.stage == READ]
    until = max(reads, default=max(written))
    inside = [when for when in written if when <= until]
    if len(inside) < 2:
        return min(one.start_ns for one in graph.activities), max(
            one.end_ns for one in graph.activities
        )
    return min(inside), max(inside)


def _walk(graph: ActivityGraph, last: int, start: int, end: int) -> list[PathCall]:
    """Return the steps from last to first, clipped to [start, end]. If calls wait in a circle (in a
    damaged recording), the walk ends when it returns to a call, whose wait begins at ``start``."""
    steps, at, until, visited = [], last, end, set()
    while until > start:
        begins = max(start, min(graph.activities[at].start_ns, until))
        edge = None if at in visited else graph.binding(at)
        visited.add(at)
        ready = start if edge is None else max(start, min(graph.time_of(edge), begins))
        steps.append(
            PathCall(at, until - begins, begins - ready, PROGRAM if edge is None else edge.cause)
        )
        if edge is None:
            break
        at, until = edge.before, ready
    return steps


def _sum_by_stage(graph: ActivityGraph, steps: Sequence[PathCall]) -> dict[str, StageOnPath]:
    stages: dict[str, StageOnPath] = {}
    for step in steps:
        stage = stages.setdefault(graph.activities[step.at].stage, StageOnPath())
        stage.calls += step.self_ns > 0
        stage.self_ns += step.self_ns
        stage.wait_ns += step.wait_ns
        if step.wait_ns:
            stage.causes[step.cause] += step.wait_ns
    return stages
