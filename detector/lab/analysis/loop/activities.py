"""A run as a graph of stage calls: what each had to wait for, by the rules of the loop.

A call starts when the last of its predecessors is done: the call before it on its thread (program
order), the stage that made its data, and the call that gave back the room that it needed (bounded
queues push back, and requests and pictures come from pools). The rules are those of
``loop/overlapped.py``; threads are those of the calls, and nothing is guessed from the clock. Below
the graph are other views of the same calls: the depths of queues, and the durations of each stage.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core.session.document import LoopSizes
from detector.core.timeline import KINDS, WORK
from detector.core.timeline.histogram import SAMPLE_FLOORS
from detector.core.timeline.order import ends_of_frames, in_order, longest_batch
from detector.core.timeline.rows import NOT_KNOWN
from detector.core.timeline.spans import HEAD, INFER, NMS, PREPROCESS, READ, WRITE
from detector.lab.session.columns import THREAD_TIMES, find_frame_times
from detector.lab.session.profile import StepRow

PROGRAM = "program order"
DATA = "data"
REQUEST = "request given back"
IMAGE = "picture given back"
BATCH_ROOM = "room for a filled batch"
RESULT_ROOM = "room for a result"
# How people read them; sessions hold the names above.
SHOWN = {PROGRAM: "busy thread", REQUEST: "free request", IMAGE: "free image"}


@dataclass(frozen=True, slots=True)
class LoopShape:
    """The sizes that bound a loop. ``requests`` and ``images``: in their pools. ``queue_batches``:
    filled batches that may wait for a worker. ``results``: most results ahead of the writer."""

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
    """Time of a call's thread: ``off_cpu_ns`` without a core, of it ``ready_ns`` ready for one."""

    off_cpu_ns: int
    ready_ns: int
    library_ns: int | None = None


class Activity(NamedTuple):
    """One call of a stage. ``number``: of the frame or, for infer, batch. ``spent``: if known."""

    stage: str
    number: int
    thread: str
    start_ns: int
    end_ns: int
    spent: OffCpu | None = None


class Edge(NamedTuple):
    """What an activity waits for: the end of activity ``before``, or its start (``at_start``)."""

    before: int
    cause: str
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class ActivityGraph:
    """Activities by their start; ``edges[i]`` lead to the activities that i waits for."""

    activities: Sequence[Activity]
    edges: Sequence[Sequence[Edge]]

    def when(self, edge: Edge) -> int:
        before = self.activities[edge.before]
        return before.start_ns if edge.at_start else before.end_ns

    def order(self) -> list[int]:
        waiting = [len(edges) for edges in self.edges]
        after: list[list[int]] = [[] for _ in self.edges]
        for at, edges in enumerate(self.edges):
            for edge in edges:
                after[edge.before].append(at)
        ready = [at for at, count in enumerate(waiting) if not count]  # sorted, so already a heap
        found = []
        while ready:
            at = heapq.heappop(ready)
            found.append(at)
            for other in after[at]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, other)
        return found

    def binding(self, at: int) -> Edge | None:
        """The predecessor that was done last, which is why the activity did not start earlier."""
        return max(self.edges[at], key=self.when, default=None)


def activities_of(columns: dict[str, NDArray[Any]], source: int = 0) -> list[Activity]:
    """Return the work spans of one source by start; a stage that ran inside another is left out."""
    rows = len(columns["kind"])
    told = [columns.get(name, np.full(rows, NOT_KNOWN)) for name in THREAD_TIMES]
    picked = (columns["kind"] == KINDS.index(WORK)) & (columns["source"] == source)
    threads, stages = columns["thread_names"].tolist(), columns["stage_names"].tolist()
    found = []
    for t, s, i, start, end, off, ready, library in zip(
        columns["thread"][picked].tolist(),
        columns["stage"][picked].tolist(),
        columns["index"][picked].tolist(),
        columns["start_ns"][picked].tolist(),
        columns["end_ns"][picked].tolist(),
        *(column[picked].tolist() for column in told),
        strict=True,
    ):
        spent = None
        if off != NOT_KNOWN and ready != NOT_KNOWN:
            spent = OffCpu(off, ready, None if library == NOT_KNOWN else library)
        found.append(Activity(stages[s], i, threads[t], start, end, spent))
    found.sort(key=lambda one: (one.start_ns, one.end_ns))
    return _outermost(found)


def _outermost(found: list[Activity]) -> list[Activity]:
    last: dict[str, int] = {}  # thread -> the place of its last call that is kept
    kept: list[Activity] = []
    for one in found:
        at = last.get(one.thread)
        if at is None or one.start_ns >= kept[at].end_ns:
            last[one.thread] = len(kept)
            kept.append(one)
        elif (outer := kept[at].spent) and one.spent:
            both = outer.off_cpu_ns + one.spent.off_cpu_ns, outer.ready_ns + one.spent.ready_ns
            kept[at] = kept[at]._replace(spent=OffCpu(*both, outer.library_ns))
    return kept


def activity_graph(activities: Sequence[Activity], shape: LoopShape) -> ActivityGraph:
    """Return the graph of one source's run. An activity has no edge to one that was not kept."""
    rules = _Rules(activities, shape)
    return ActivityGraph(activities, [list(rules.edges(at)) for at in range(len(activities))])


class Batches:
    """The frames of each batch, and which of them were inferred: only these have a head. Others
    (--infer-every, --skip-still) take no row, so that a batch spans more frames."""

    def __init__(self, activities: Sequence[Activity], shape: LoopShape) -> None:
        numbers: dict[str, set[int]] = defaultdict(set)
        for one in activities:
            numbers[one.stage].add(one.number)
        # The last read finds the end of the source; it may be the first call of a batch.
        behind = numbers[PREPROCESS] | numbers[NMS]
        self.frames = 1 + min(max(numbers[READ], default=-1), max(behind, default=-1))
        self._inferred = numbers[HEAD]
        spared = numbers[NMS] - numbers[HEAD]
        self._firsts = self._reaching(shape) if spared else range(0, self.frames + 1, shape.batch)

    def _reaching(self, shape: LoopShape) -> list[int]:
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


class _Rules:
    def __init__(self, activities: Sequence[Activity], shape: LoopShape) -> None:
        self._activities, self._shape = activities, shape
        self._order = in_order(one.stage for one in activities)
        self._at = {(one.stage, one.number): at for at, one in enumerate(activities)}
        self._batches = Batches(activities, shape)
        # The calls after which requests were returned: the head of each batch's last row. For a
        # batch without a row it was not before the last read.
        calls = [at for at, one in enumerate(activities) if one.stage in (READ, HEAD)]
        last = {self._batches.of(activities[at].number): at for at in calls}
        self._given_back = sorted(last.values(), key=lambda at: activities[at].end_ns)
        self._hand_overs = hand_overs(activities, self._batches)
        self._done_before = {taken: done for done, taken in self._hand_overs.values()}
        self._before: dict[int, int] = {}
        before: dict[str, int] = {}
        for at, one in enumerate(activities):
            if one.thread in before:
                self._before[at] = before[one.thread]
            before[one.thread] = at

    def edges(self, at: int) -> Iterator[Edge]:
        one = self._activities[at]
        if at in self._before:
            yield Edge(self._before[at], PROGRAM)
        if self._shape.sync:
            return
        if one.stage == READ:
            yield from self._reading(one.number)
        elif one.stage == INFER:
            yield from self._inferring(at, one.number)
        elif at in self._done_before:
            yield Edge(self._done_before[at], DATA)

    def _reading(self, frame: int) -> Iterator[Edge]:
        shape = self._shape
        yield from self._edge(self._last_of_frame(), frame - shape.images, IMAGE)
        if not self._batches.begins(frame):
            return
        batch = self._batches.of(frame)
        if 0 <= batch - shape.requests < len(self._given_back):
            yield Edge(self._given_back[batch - shape.requests], REQUEST)
        # The queue had room as soon as a worker took the batch ``queue_batches`` places ahead.
        yield from self._edge(INFER, batch - 1 - shape.queue_batches, BATCH_ROOM, at_start=True)

    def _inferring(self, at: int, batch: int) -> Iterator[Edge]:
        members = self._batches.members(batch)
        if members:  # one that has no row is only read
            last = members[-1]
            is_row = (PREPROCESS, last) in self._at
            yield from self._edge(PREPROCESS if is_row else READ, last, DATA)
        if at in self._before:
            # The queue had room for this worker's last result when the writer took an earlier one.
            last = self._batches.of_call(self._activities[self._before[at]])
            if (earlier := self._hand_overs.get(last - self._shape.results)) is not None:
                yield Edge(earlier[1], RESULT_ROOM, at_start=True)

    def _last_of_frame(self) -> str:
        return next((one for one in reversed(self._order) if (one, 0) in self._at), NMS)

    def _edge(self, stage: str, index: int, cause: str, at_start: bool = False) -> Iterator[Edge]:
        at = self._at.get((stage, index)) if index >= 0 else None
        if at is not None:
            yield Edge(at, cause, at_start)


def hand_overs(activities: Sequence[Activity], batches: Batches) -> dict[int, tuple[int, int]]:
    """Return each batch's hand-over to the writer: the worker's last call and the writer's first.
    The plain loop has none."""
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
    """[F] int64: when each frame was done, in nanoseconds of the clock, by frame."""
    done = _ends(activities)
    return np.array([done[index] for index in sorted(done)], np.int64)


def _ends(activities: Sequence[Activity]) -> dict[int, int]:
    """Frame -> when it was done, in nanoseconds."""
    stages, done = ends_of_frames({one.stage for one in activities}), dict[int, int]()
    for one in activities:
        if one.stage in stages:
            done[one.number] = max(done.get(one.number, one.end_ns), one.end_ns)
    return done


# How full the loop's queues were over time, from the spans of its stages.

FILLED = "batches waiting for inference"  # preprocessed, not yet in the engine
RESULTS = "results waiting for the writer"
IN_FLIGHT = "frames in flight"  # read, not yet written

Steps = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(times in nanoseconds, ascending; the depth from each of them on)."""


def depths(activities: Sequence[Activity], shape: LoopShape) -> dict[str, Steps]:
    """The depth of each queue as steps. In the plain loop there are only frames in flight."""
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
    changes[IN_FLIGHT] += [(when, -1) for when in _ends(activities).values()]
    names = (IN_FLIGHT,) if shape.sync else (FILLED, RESULTS, IN_FLIGHT)
    return {name: _steps(changes[name]) for name in names}


def _steps(changes: list[tuple[int, int]]) -> Steps:
    ordered = np.array(
        sorted(changes, key=lambda change: (change[0], -change[1])), np.int64
    ).reshape(-1, 2)
    return ordered[:, 0], np.cumsum(ordered[:, 1])


def mean_depth(steps: Steps) -> float:
    times, levels = steps
    if len(times) < 2 or times[-1] == times[0]:
        return 0.0
    return float(np.sum(levels[:-1] * np.diff(times)) / (times[-1] - times[0]))


@dataclass(frozen=True, slots=True)
class QueueCurve:
    """A queue over time in equal bins; ``full``, ``empty``: the shares of time in that state."""

    name: str
    times_s: list[float]
    means: list[float]
    least: list[int]
    most: list[int]
    room: int
    mean: float
    full: float
    empty: float


QUEUE_BINS = 80


def queue_curves(activities: Sequence[Activity], shape: LoopShape) -> list[QueueCurve]:
    rooms = {FILLED: shape.queue_batches, RESULTS: shape.results, IN_FLIGHT: shape.images}
    begin = min((one.start_ns for one in activities), default=0)
    return [
        _queue_curve(name, steps, rooms[name], begin)
        for name, steps in depths(activities, shape).items()
        if len(steps[0]) > 1 and steps[0][-1] > steps[0][0]
    ]


def _queue_curve(name: str, steps: Steps, room: int, begin: int) -> QueueCurve:
    times, levels = steps
    edges = np.linspace(times[0], times[-1], min(QUEUE_BINS, len(times) - 1) + 1)
    # The area below the steps up to each time: a bin's mean is a difference of two of them.
    area = np.concatenate([[0.0], np.cumsum(levels[:-1] * np.diff(times))])
    at = np.clip(np.searchsorted(times, edges, side="right") - 1, 0, len(times) - 1)
    means = np.diff(area[at] + levels[at] * (edges - times[at])) / np.diff(edges)
    seen = [levels[a : max(a, b) + 1] for a, b in itertools.pairwise(at)]
    lasting = np.diff(times)
    whole = float(lasting.sum())
    return QueueCurve(
        name,
        ((edges[:-1] + edges[1:]) / 2e9 - begin / 1e9).tolist(),
        np.maximum(means, 0.0).tolist(),
        [int(part.min()) for part in seen],
        [int(part.max()) for part in seen],
        room,
        mean_depth(steps),
        float(lasting[levels[:-1] >= room].sum()) / whole,
        float(lasting[levels[:-1] <= 0].sum()) / whole,
    )


# The durations of each stage: counts, sums and percentiles, as in the table of the lab's tools.


def durations_ms(columns: dict[str, NDArray[Any]], stage: str) -> NDArray[np.float64]:
    """[N] float64: milliseconds of every recorded call of a stage, by start."""
    return _durations_by_stage(columns).get(stage, np.zeros(0))


def _durations_by_stage(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    work = columns["kind"] == KINDS.index(WORK)
    stages = columns["stage"][work]
    by_stage = np.argsort(stages, kind="stable")
    ms = ((columns["end_ns"][work] - columns["start_ns"][work]) / 1e6)[by_stage]
    names = columns["stage_names"].tolist()
    ends = np.searchsorted(stages[by_stage], np.arange(len(names)), side="right").tolist()
    return {name: ms[start:end] for name, start, end in zip(names, [0, *ends], ends, strict=False)}


def step_rows(columns: dict[str, NDArray[Any]]) -> list[StepRow]:
    found = _durations_by_stage(columns)
    calls = {stage: found[stage] for stage in in_order(found) if stage in found}
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
    """[F] float64: ms from each frame's read to its last stage's end, of the first source."""
    frames = find_frame_times(columns)
    own = frames[frames[:, 0] == 0]
    times: NDArray[np.float64] = (own[:, 3] - own[:, 2]) / 1e6
    return times
