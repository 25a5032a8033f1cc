"""A run as a graph of stage calls. Edges lead from a call to the calls that it had to wait for.

A call starts when all its predecessors are done: the previous call of its thread (program order),
the call that made its data, and the call that freed a resource (room in a bounded queue, or a
request or picture of a pool). The rules are those of ``loop/overlapped.py``; nothing is inferred
from times. This file also computes the depths of queues and the durations of stages.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core.session.document import LoopSizes
from detector.core.timeline.histogram import SAMPLE_FLOORS
from detector.core.timeline.order import ends_of_frames, in_order, longest_batch
from detector.core.timeline.rows import NOT_KNOWN
from detector.core.timeline.spans import HEAD, INFER, KINDS, NMS, PREPROCESS, READ, WORK, WRITE
from detector.lab.session.columns import THREAD_TIMES, find_frame_times
from detector.lab.session.profile import StepRow

PROGRAM = "program order"
DATA = "data"
REQUEST = "request given back"
IMAGE = "picture given back"
BATCH_ROOM = "room for a filled batch"
RESULT_ROOM = "room for a result"
# Names for reports. Sessions contain the names above.
DISPLAY_NAMES = {PROGRAM: "busy thread", REQUEST: "free request", IMAGE: "free image"}


@dataclass(frozen=True, slots=True)
class LoopShape:
    """The limits of a loop. ``requests`` and ``images``: sizes of its two pools. ``queue_batches``:
    filled batches that may wait for a worker. ``results``: results that may wait for the writer."""

    batch: int
    concurrency: int
    requests: int
    images: int
    queue_batches: int
    results: int
    sync: bool = False

    @classmethod
    def of(cls, sizes: LoopSizes) -> LoopShape:
        return cls(**sizes)


class OffCpu(NamedTuple):
    """Times of a call. ``off_cpu_ns``: its thread was on no core. ``ready_ns``: the part of
    ``off_cpu_ns`` spent waiting for a free core. ``library_ns``: CPU time of library threads."""

    off_cpu_ns: int
    ready_ns: int
    library_ns: int | None = None


class Activity(NamedTuple):
    """One call of a stage. ``number``: index of its frame or, for infer, of its batch."""

    stage: str
    number: int
    thread: str
    start_ns: int
    end_ns: int
    spent: OffCpu | None = None


class Edge(NamedTuple):
    """A wait for the activity at index ``before``: for its end or, if ``at_start``, its start."""

    before: int
    cause: str
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class ActivityGraph:
    """Activities sorted by start. ``edges[i]`` lead to the activities that activity i waits for."""

    activities: Sequence[Activity]
    edges: Sequence[Sequence[Edge]]

    def time_of(self, edge: Edge) -> int:
        before = self.activities[edge.before]
        return before.start_ns if edge.at_start else before.end_ns

    def binding(self, at: int) -> Edge | None:
        """Return the edge to the predecessor that ended last, which delayed the activity."""
        return max(self.edges[at], key=self.time_of, default=None)


def activities_of(columns: dict[str, NDArray[Any]], source: int = 0) -> list[Activity]:
    """Return the work spans of one source, sorted by start, without spans nested in another."""
    rows = len(columns["kind"])
    columns_of_cpu = [columns.get(name, np.full(rows, NOT_KNOWN)) for name in THREAD_TIMES]
    picked = (columns["kind"] == KINDS.index(WORK)) & (columns["source"] == source)
    threads, stages = columns["thread_names"].tolist(), columns["stage_names"].tolist()
    activities = []
    for t, s, i, start, end, off, ready, library in zip(
        columns["thread"][picked].tolist(),
        columns["stage"][picked].tolist(),
        columns["index"][picked].tolist(),
        columns["start_ns"][picked].tolist(),
        columns["end_ns"][picked].tolist(),
        *(column[picked].tolist() for column in columns_of_cpu),
        strict=True,
    ):
        spent = None
        if off != NOT_KNOWN and ready != NOT_KNOWN:
            spent = OffCpu(off, ready, None if library == NOT_KNOWN else library)
        activities.append(Activity(stages[s], i, threads[t], start, end, spent))
    activities.sort(key=lambda one: (one.start_ns, one.end_ns))
    return _drop_nested(activities)


def _drop_nested(activities: list[Activity]) -> list[Activity]:
    last: dict[str, int] = {}  # thread -> index of its last call in ``outermost``
    outermost: list[Activity] = []
    for one in activities:
        at = last.get(one.thread)
        if at is None or one.start_ns >= outermost[at].end_ns:
            last[one.thread] = len(outermost)
            outermost.append(one)
        elif (outer := outermost[at].spent) and one.spent:
            both = outer.off_cpu_ns + one.spent.off_cpu_ns, outer.ready_ns + one.spent.ready_ns
            outermost[at] = outermost[at]._replace(spent=OffCpu(*both, outer.library_ns))
    return outermost


def activity_graph(activities: Sequence[Activity], shape: LoopShape) -> ActivityGraph:
    """Return the graph of one source's run. No edges lead to activities that were not recorded."""
    rules = _EdgeRules(activities, shape)
    return ActivityGraph(activities, [list(rules.edges(at)) for at in range(len(activities))])


class Batches:
    """The frames of each batch, and which of them were inferred. Only inferred frames have a head
    call and a row in the network's input. Other frames (--infer-every, --skip-still) have none."""

    def __init__(self, activities: Sequence[Activity], shape: LoopShape) -> None:
        numbers: dict[str, set[int]] = defaultdict(set)
        for one in activities:
            numbers[one.stage].add(one.number)
        # The last read finds the end of the source instead of a frame, so it does not count.
        after_inference = numbers[PREPROCESS] | numbers[NMS]
        self.frames = 1 + min(max(numbers[READ], default=-1), max(after_inference, default=-1))
        self._inferred = numbers[HEAD]
        skipped = numbers[NMS] - numbers[HEAD]
        self._firsts = (
            self._find_firsts(shape) if skipped else range(0, self.frames + 1, shape.batch)
        )

    def _find_firsts(self, shape: LoopShape) -> list[int]:
        firsts, rows, most = [0], 0, longest_batch(shape.batch, shape.images)
        for frame in range(self.frames + 1):
            if rows == shape.batch or frame - firsts[-1] == most:
                firsts.append(frame)
                rows = 0
            rows += frame in self._inferred
        return firsts

    def of(self, frame: int) -> int:
        return bisect.bisect_right(self._firsts, frame) - 1

    def of_call(self, one: Activity) -> int:
        return one.number if one.stage == INFER else self.of(one.number)

    def begins(self, frame: int) -> bool:
        return self._firsts[self.of(frame)] == frame

    def members(self, batch: int) -> range:
        if not 0 <= batch < len(self._firsts):
            return range(0)
        end = self._firsts[batch + 1] if batch + 1 < len(self._firsts) else self.frames
        return range(self._firsts[batch], min(end, self.frames))

    def inferred(self, batch: int) -> list[int]:
        return [frame for frame in self.members(batch) if frame in self._inferred]


class _EdgeRules:
    def __init__(self, activities: Sequence[Activity], shape: LoopShape) -> None:
        self._activities, self._shape = activities, shape
        self._order = in_order(one.stage for one in activities)
        self._places = {(one.stage, one.number): at for at, one in enumerate(activities)}
        self._batches = Batches(activities, shape)
        # The calls that returned requests to the pool, sorted by their end. A batch's request is
        # returned by the head call of its last row or, if it has no rows, by its last read.
        calls = [at for at, one in enumerate(activities) if one.stage in (READ, HEAD)]
        last = {self._batches.of(activities[at].number): at for at in calls}
        self._returned = sorted(last.values(), key=lambda at: activities[at].end_ns)
        self._hand_overs = hand_overs(activities, self._batches)
        self._handed_by = {taken: done for done, taken in self._hand_overs.values()}
        self._previous: dict[int, int] = {}
        before: dict[str, int] = {}
        for at, one in enumerate(activities):
            if one.thread in before:
                self._previous[at] = before[one.thread]
            before[one.thread] = at

    def edges(self, at: int) -> Iterator[Edge]:
        one = self._activities[at]
        if at in self._previous:
            yield Edge(self._previous[at], PROGRAM)
        if self._shape.sync:
            return
        if one.stage == READ:
            yield from self._edges_of_read(one.number)
        elif one.stage == INFER:
            yield from self._edges_of_infer(at, one.number)
        elif at in self._handed_by:
            yield Edge(self._handed_by[at], DATA)

    def _edges_of_read(self, frame: int) -> Iterator[Edge]:
        shape = self._shape
        last = next((one for one in reversed(self._order) if (one, 0) in self._places), NMS)
        yield from self._find_edge(last, frame - shape.images, IMAGE)
        if not self._batches.begins(frame):
            return
        batch = self._batches.of(frame)
        if 0 <= batch - shape.requests < len(self._returned):
            yield Edge(self._returned[batch - shape.requests], REQUEST)
        # Before, the reader queued batch k = batch - 1. That was possible once a worker had taken
        # batch k - queue_batches.
        yield from self._find_edge(
            INFER, batch - 1 - shape.queue_batches, BATCH_ROOM, at_start=True
        )

    def _edges_of_infer(self, at: int, batch: int) -> Iterator[Edge]:
        members = self._batches.members(batch)
        if members:
            last = members[-1]
            is_row = (PREPROCESS, last) in self._places
            yield from self._find_edge(PREPROCESS if is_row else READ, last, DATA)
        if at in self._previous:
            # The writer made room for this worker's previous result when it took an earlier one.
            last = self._batches.of_call(self._activities[self._previous[at]])
            if (earlier := self._hand_overs.get(last - self._shape.results)) is not None:
                yield Edge(earlier[1], RESULT_ROOM, at_start=True)

    def _find_edge(
        self, stage: str, index: int, cause: str, at_start: bool = False
    ) -> Iterator[Edge]:
        at = self._places.get((stage, index)) if index >= 0 else None
        if at is not None:
            yield Edge(at, cause, at_start)


def hand_overs(activities: Sequence[Activity], batches: Batches) -> dict[int, tuple[int, int]]:
    """Return the hand-over of each batch to the writer: the indexes of the worker's last call and
    the writer's first call for this batch. The plain loop has no hand-overs."""
    threads = {one.stage: one.thread for one in activities}
    workers = {one.thread for one in activities if one.stage == INFER}
    done: dict[int, int] = {}
    taken: dict[int, int] = {}
    for at, one in enumerate(activities):
        batch = batches.of_call(one)
        if one.thread in workers:
            done[batch] = at
        elif one.thread == threads.get(WRITE):
            taken.setdefault(batch, at)
    return {one: (done[one], taken[one]) for one in done.keys() & taken.keys() if one >= 0}


def frames_written(activities: Sequence[Activity]) -> NDArray[np.int64]:
    """Return the end time of each frame in nanoseconds [F], in order of frames."""
    done = _find_ends(activities)
    return np.array([done[index] for index in sorted(done)], np.int64)


def _find_ends(activities: Sequence[Activity]) -> dict[int, int]:
    stages, done = ends_of_frames({one.stage for one in activities}), dict[int, int]()
    for one in activities:
        if one.stage in stages:
            done[one.number] = max(done.get(one.number, one.end_ns), one.end_ns)
    return done


# The depths of the loop's queues over time

FILLED = "batches waiting for inference"  # preprocessed, not yet in the engine
RESULTS = "results waiting for the writer"
IN_FLIGHT = "frames in flight"  # read, not yet written

Steps = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Times in nanoseconds, ascending, and the depth from each time on."""


def depths(activities: Sequence[Activity], shape: LoopShape) -> dict[str, Steps]:
    """Return the depth of each queue over time. The plain loop has only frames in flight."""
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    batches = Batches(activities, shape)
    inferred = [batches.inferred(one.number) for one in activities if one.stage == INFER]
    lasts = {one[-1] for one in inferred if one}
    for one in activities:
        if one.stage == READ and one.number < batches.frames:
            changes[IN_FLIGHT].append((one.end_ns, 1))
        elif one.stage == PREPROCESS and one.number in lasts:
            changes[FILLED].append((one.end_ns, 1))
        elif one.stage == INFER:
            changes[FILLED].append((one.start_ns, -1))
    for done, taken in hand_overs(activities, batches).values():
        changes[RESULTS] += [(activities[done].end_ns, 1), (activities[taken].start_ns, -1)]
    changes[IN_FLIGHT] += [(when, -1) for when in _find_ends(activities).values()]
    names = (IN_FLIGHT,) if shape.sync else (FILLED, RESULTS, IN_FLIGHT)
    return {name: _steps(changes[name]) for name in names}


def _steps(changes: list[tuple[int, int]]) -> Steps:
    ordered = np.array(
        sorted(changes, key=lambda change: (change[0], -change[1])), np.int64
    ).reshape(-1, 2)
    return ordered[:, 0], np.cumsum(ordered[:, 1])


# The durations of each stage


def durations_ms(columns: dict[str, NDArray[Any]], stage: str) -> NDArray[np.float64]:
    """Return the milliseconds [N] of every recorded call of a stage, in order of their starts."""
    return _durations_by_stage(columns).get(stage, np.zeros(0))


def _durations_by_stage(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    work = columns["kind"] == KINDS.index(WORK)
    stages = columns["stage"][work]
    by_stage = np.argsort(stages, kind="stable")
    ms = ((columns["end_ns"][work] - columns["start_ns"][work]) / 1e6)[by_stage]
    names = columns["stage_names"].tolist()
    ends = np.searchsorted(stages[by_stage], np.arange(len(names)), side="right").tolist()
    return {name: ms[start:end] for name, start, end in zip(names, [0, *ends], ends, strict=False)}


def times_of_thread(columns: dict[str, NDArray[Any]], thread: str) -> dict[str, float]:
    """Return stage -> milliseconds of the thread's recorded calls."""
    own = np.isin(columns["thread"], np.flatnonzero(columns["thread_names"] == thread))
    picked = {name: columns[name][own] for name in ("kind", "stage", "start_ns", "end_ns")}
    durations = _durations_by_stage(columns | picked)
    return {stage: float(ms.sum()) for stage, ms in durations.items()}


def step_rows(columns: dict[str, NDArray[Any]]) -> list[StepRow]:
    durations = _durations_by_stage(columns)
    calls = {stage: durations[stage] for stage in in_order(durations) if stage in durations}
    whole = sum(float(values.sum()) for values in calls.values()) or 1.0
    return [
        StepRow(
            step=stage,
            total=float(values.sum()),
            count=len(values),
            avg=float(values.mean()),
            std=float(values.std(ddof=1)) if len(values) > 1 else None,
            min=float(values.min()),
            max=float(values.max()),
            share=float(values.sum()) / whole,
            **percentiles(values),
        )
        for stage, values in calls.items()
        if len(values)
    ]


def percentiles(values: NDArray[np.float64]) -> dict[str, float | None]:
    return {
        f"p{percent}": float(np.percentile(values, percent, method="inverted_cdf"))
        if len(values) >= least
        else None
        for percent, least in SAMPLE_FLOORS.items()
    }


def frame_times_ms(columns: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return the ms [F] from a frame's read to the end of its last stage, for the first source."""
    frames = find_frame_times(columns)
    own = frames[frames[:, 0] == 0]
    times: NDArray[np.float64] = (own[:, 3] - own[:, 2]) / 1e6
    return times
