"""Runs on paper: compute when each call of a loop starts and ends from given durations.

The times depend on earlier batches alone, so one pass over the batches is enough.
``test_a_real_run_keeps_to_the_graph`` checks the graph's rules against runs of the loop itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detector.core.timeline import STAGES
from detector.lab.analysis.loop.activities import Activity, LoopShape, Steps

MS = 1_000_000


def shape(
    batch: int = 1,
    concurrency: int = 1,
    requests: int = 4,
    images: int = 8,
    queue: int = 2,
    sync: bool = False,
):
    return LoopShape(batch, concurrency, requests, images, queue, queue + concurrency, sync)


@dataclass(frozen=True)
class Load:
    """``seconds[stage][number]``: of each call; one more read call finds the end. ``by_writer``:
    head and nms are its, as until 0.2."""

    frames: int
    shape: LoopShape
    seconds: Mapping[str, Sequence[float]]
    by_writer: bool = False


def load(frames: int, loop: LoopShape, by_writer=False, **each: float | list[float]) -> Load:
    """Seconds of each call of a stage: one number for all, or a list."""
    batches = -(-frames // loop.batch)
    seconds = {}
    for stage in STAGES:
        value = each.get(stage, 0.0)
        count = batches if stage == "infer" else frames + (stage == "read")
        seconds[stage] = value if isinstance(value, list) else [value] * count
    if not isinstance(each.get("read", 0.0), list):
        seconds["read"][-1] = 0.0  # finding the end costs nothing
    return Load(frames, loop, seconds, by_writer)


def wall(one: Load) -> float:
    """Seconds until the last call ends."""
    return max((call.end_ns for call in run_of(one)), default=0) / 1e9


def run_of(one: Load) -> list[Activity]:
    """All calls as the instruments see them, by their start."""
    paper = _Paper(one)
    paper.in_turn() if one.shape.sync else paper.overlapped()
    return sorted(paper.calls, key=lambda call: (call.start_ns, call.end_ns))


class _Paper:
    def __init__(self, one: Load) -> None:
        self.one, self.loop = one, one.shape
        self.calls: list[Activity] = []
        self.clock: dict[str, float] = {}  # thread -> when it is free
        self.ended: dict[tuple[str, int], float] = {}
        self.taken: dict[int, float] = {}  # batch -> when the writer took it
        self.began: dict[int, float] = {}  # batch -> when its inference began
        self.given_back: list[float] = []  # when the request of each batch was, as it happened

    def call(self, thread: str, stage: str, number: int) -> None:
        start = self.clock.get(thread, 0.0)
        end = start + self.one.seconds[stage][number]
        self.ended[stage, number] = end
        self.clock[thread] = end
        self.calls.append(Activity(stage, number, thread, round(start * 1e9), round(end * 1e9)))

    def wait(self, thread: str, when: float | None) -> None:
        """None: for what was there from the beginning."""
        self.clock[thread] = max(self.clock.get(thread, 0.0), when or 0.0)

    def rows(self, batch: int) -> range:
        size = self.loop.batch
        return range(batch * size, min((batch + 1) * size, self.one.frames))

    def in_turn(self) -> None:
        for batch in range(-(-self.one.frames // self.loop.batch)):
            for frame in self.rows(batch):
                self.call("main", "read", frame)
                self.call("main", "preprocess", frame)
            self.call("main", "infer", batch)
            self.detect("main", batch)
            self.write("main", batch)
        self.call("main", "read", self.one.frames)

    def detect(self, thread: str, batch: int) -> None:
        for frame in self.rows(batch):
            self.call(thread, "head", frame)
        self.given_back = sorted([*self.given_back, self.clock[thread]])
        for frame in self.rows(batch):
            self.call(thread, "nms", frame)

    def write(self, thread: str, batch: int) -> None:
        for frame in self.rows(batch):
            for stage in ("annotate", "write"):
                self.call(thread, stage, frame)

    def overlapped(self) -> None:
        for batch in range(self.one.frames // self.loop.batch + 1):
            self.read(batch)
            if self.rows(batch):
                self.wait("writer", self.infer(batch))
                self.taken[batch] = self.clock["writer"]
                if self.one.by_writer:
                    self.detect("writer", batch)
                self.write("writer", batch)

    def read(self, batch: int) -> None:
        """Take a request, then read a picture for each row; the call that finds the end needs both
        too. The batch goes once the queue has room, that is, when an earlier one was taken."""
        if batch >= self.loop.requests:
            self.wait("reader", self.given_back[batch - self.loop.requests])
        rows = self.rows(batch)
        for frame in rows:
            self.wait("reader", self.ended.get(("write", frame - self.loop.images)))
            self.call("reader", "read", frame)
            self.call("reader", "preprocess", frame)
        if len(rows) < self.loop.batch:
            end = self.one.frames
            self.wait("reader", self.ended.get(("write", end - self.loop.images)))
            self.call("reader", "read", end)
        if rows:
            self.wait("reader", self.began.get(batch - self.loop.queue_batches))

    def infer(self, batch: int) -> float:
        """Infer on the first free worker. It is free again when the queue has room for its result,
        that is, when the writer takes an earlier one. Return the end of the call."""
        workers = [f"worker-{at}" for at in range(self.loop.concurrency)]
        thread = min(workers, key=lambda name: self.clock.get(name, 0.0))
        self.wait(thread, self.clock["reader"])
        self.began[batch] = self.clock[thread]
        self.call(thread, "infer", batch)
        if not self.one.by_writer:
            self.detect(thread, batch)
        done = self.clock[thread]
        self.wait(thread, self.taken.get(batch - self.loop.results))
        return done


def mean_depth(steps: Steps) -> float:
    times, levels = steps
    return float(np.sum(levels[:-1] * np.diff(times)) / (times[-1] - times[0]))
