"""A run as a graph: what every call of a stage had to wait for, by the rules of the loop.

A call starts when the latest of its predecessors is done. Predecessors are the call before it on its thread (program
order), the stage that made its data, and what gave back the room it needed: the bounded queues push back, and requests
and pictures come from pools. The rules are those of ``loop/overlapped.py``; nothing is guessed from the clock.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.timeline import KINDS, STAGES, WORK
from detector.timeline.stages import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE

PROGRAM = "program order"
DATA = "data"
REQUEST = "request given back"
IMAGE = "picture given back"
BATCH_ROOM = "room for a filled batch"
RESULT_ROOM = "room for a result"

ROWS_OF_A_FRAME = (HEAD, NMS, ANNOTATE, WRITE)


@dataclass(frozen=True, slots=True)
class LoopShape:
    """The sizes that bound a loop. ``requests`` and ``images``: in their pools; ``queue_batches``: filled batches that
    may wait for a worker; ``results``: batches that may be ahead of the writer."""

    batch: int
    concurrency: int
    requests: int
    images: int
    queue_batches: int
    results: int
    sync: bool = False

    @classmethod
    def of(cls, document: dict[str, Any]) -> LoopShape:
        """From the ``loop`` of session.json."""
        return cls(**{name: document[name] for name in cls.__slots__})


class Activity(NamedTuple):
    """One call of a stage. ``number``: the frame's number in the run, or the batch's for infer. Nanoseconds."""

    stage: str
    number: int
    thread: str
    start_ns: int
    end_ns: int


class Edge(NamedTuple):
    """What an activity waits for: activity ``before``, its end or (``at_start``) its start, and why."""

    before: int
    cause: str
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class ActivityGraph:
    """``edges[i]`` lead to what activity i waits for. Activities are sorted by their start."""

    activities: Sequence[Activity]
    edges: Sequence[Sequence[Edge]]

    def when(self, edge: Edge) -> int:
        before = self.activities[edge.before]
        return before.start_ns if edge.at_start else before.end_ns

    def order(self) -> list[int]:
        """Every activity after all that it waits for; among equals the one that started first."""
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
        """The predecessor that was there last: the reason why the activity did not start earlier."""
        return max(self.edges[at], key=self.when, default=None)


def activities_of(columns: dict[str, NDArray[Any]], source: int = 0) -> list[Activity]:
    """The work spans of one source, from the columns of spans.npz, by start. A stage that ran inside another one is
    left out: its time is the outer's."""
    picked = (columns["kind"] == KINDS.index(WORK)) & (columns["source"] == source)
    threads, stages = columns["thread_names"].tolist(), columns["stage_names"].tolist()
    rows = zip(
        columns["thread"][picked].tolist(), columns["stage"][picked].tolist(), columns["index"][picked].tolist(),
        columns["start_ns"][picked].tolist(), columns["end_ns"][picked].tolist(), strict=True,
    )  # fmt: skip
    found = [Activity(stages[s], i, threads[t], start, end) for t, s, i, start, end in rows if stages[s] in STAGES]
    found.sort(key=lambda one: (one.start_ns, one.end_ns))
    return _outermost(found)


def _outermost(found: list[Activity]) -> list[Activity]:
    ends: dict[str, int] = {}
    kept = []
    for one in found:
        if one.start_ns >= ends.get(one.thread, one.start_ns):
            ends[one.thread] = one.end_ns
            kept.append(one)
    return kept


def activity_graph(activities: Sequence[Activity], shape: LoopShape) -> ActivityGraph:
    """The graph of one source's run. Activities whose partners were not kept have fewer edges."""
    rules = _Rules(activities, shape)
    return ActivityGraph(activities, [list(rules.edges(at)) for at in range(len(activities))])


class _Rules:
    def __init__(self, activities: Sequence[Activity], shape: LoopShape) -> None:
        self._activities, self._shape = activities, shape
        self._at = {(one.stage, one.number): at for at, one in enumerate(activities)}
        self._frames = 1 + max((one.number for one in activities if one.stage == READ), default=-1)
        # The last read call finds the end of the source: there is no preprocess for it.
        self._frames = min(
            self._frames, 1 + max((one.number for one in activities if one.stage == PREPROCESS), default=-1)
        )
        self._before: dict[int, int] = {}
        last: dict[str, int] = {}
        for at, one in enumerate(activities):
            if one.thread in last:
                self._before[at] = last[one.thread]
            last[one.thread] = at

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
        elif one.stage == HEAD and one.number % self._shape.batch == 0:
            yield from self._edge(INFER, one.number // self._shape.batch, DATA)

    def _reading(self, frame: int) -> Iterator[Edge]:
        shape = self._shape
        yield from self._edge(self._last_of_frame(), frame - shape.images, IMAGE)
        if frame % shape.batch:
            return
        batch = frame // shape.batch
        yield from self._edge(HEAD, self._last_row(batch - shape.requests), REQUEST)
        # The batch before this one was let into the queue when a worker took the one that many places ahead of it.
        yield from self._edge(INFER, batch - 1 - shape.queue_batches, BATCH_ROOM, at_start=True)

    def _inferring(self, at: int, batch: int) -> Iterator[Edge]:
        yield from self._edge(PREPROCESS, self._last_row(batch), DATA)
        if at in self._before:  # this worker's last result was let in when the writer took one before it
            last = self._activities[self._before[at]].number
            first_row = (last - self._shape.results) * self._shape.batch
            yield from self._edge(HEAD, first_row, RESULT_ROOM, at_start=True)

    def _last_row(self, batch: int) -> int:
        return min((batch + 1) * self._shape.batch, self._frames) - 1 if batch >= 0 else -1

    def _last_of_frame(self) -> str:
        return WRITE if (WRITE, 0) in self._at else NMS

    def _edge(self, stage: str, index: int, cause: str, at_start: bool = False) -> Iterator[Edge]:
        at = self._at.get((stage, index)) if index >= 0 else None
        if at is not None:
            yield Edge(at, cause, at_start)


def threads_of(activities: Sequence[Activity]) -> dict[str, list[Activity]]:
    found: dict[str, list[Activity]] = defaultdict(list)
    for one in activities:
        found[one.thread].append(one)
    return dict(found)


def frames_written(activities: Sequence[Activity]) -> NDArray[np.int64]:
    """When each frame was done, in nanoseconds of the clock, by frame."""
    done: dict[int, int] = {}
    for one in activities:
        if one.stage in ROWS_OF_A_FRAME:
            done[one.number] = max(done.get(one.number, 0), one.end_ns)
    return np.array([done[index] for index in sorted(done)], np.int64)
