"""Runs with known durations: a load's replay as a recorded run, and the same loop told to SimPy, another simulator."""

from __future__ import annotations

import simpy

from detector.analysis.activities import Activity, LoopShape
from detector.analysis.replay import Call, Load, replay
from detector.timeline import STAGES

MS = 1_000_000


def shape(batch: int = 1, concurrency: int = 1, requests: int = 4, images: int = 8, queue: int = 2, sync: bool = False):
    return LoopShape(batch, concurrency, requests, images, queue, queue + concurrency, sync)


def load(frames: int, loop: LoopShape, **each: float | list[float]) -> Load:
    """Seconds of each call of a stage: one number for all, or a list."""
    batches = -(-frames // loop.batch)
    seconds = {}
    for stage in STAGES:
        value = each.get(stage, 0.0)
        count = batches if stage == "infer" else frames + (stage == "read")
        seconds[stage] = value if isinstance(value, list) else [value] * count
    if not isinstance(each.get("read", 0.0), list):
        seconds["read"][-1] = 0.0  # finding the end costs nothing
    return Load(frames, loop, seconds)


def recorded(calls: list[Call]) -> list[Activity]:
    return [Activity(c.stage, c.number, c.thread, round(c.start * 1e9), round(c.end * 1e9)) for c in calls]


def run_of(one: Load) -> list[Activity]:
    return recorded(replay(one))


def by_simpy(one: Load) -> dict[tuple[str, int], tuple[float, float]]:
    """(stage, number) -> start and end, as SimPy's own stores, containers and processes see the loop."""
    return _Loop(one).run()


class _Loop:
    def __init__(self, one: Load) -> None:
        loop = one.shape
        self.one, self.loop, self.env = one, loop, simpy.Environment()
        self.calls: dict[tuple[str, int], tuple[float, float]] = {}
        self.requests = simpy.Container(self.env, loop.requests, loop.requests)
        self.images = simpy.Container(self.env, loop.images, loop.images)
        self.filled = simpy.Store(self.env, loop.queue_batches)
        count = -(-one.frames // loop.batch)
        self.rows = [range(b * loop.batch, min((b + 1) * loop.batch, one.frames)) for b in range(count)]
        self.arrived = [self.env.event() for _ in self.rows]
        self.popped = [self.env.event() for _ in self.rows]

    def run(self) -> dict[tuple[str, int], tuple[float, float]]:
        for process in (self.reader(), *(self.worker() for _ in range(self.loop.concurrency)), self.writer()):
            self.env.process(process)
        self.env.run()
        return self.calls

    def work(self, stage: str, number: int):
        start = self.env.now
        yield self.env.timeout(self.one.of(stage, number))
        self.calls[stage, number] = (start, self.env.now)

    def reader(self):
        for batch in range(self.one.frames // self.loop.batch + 1):
            yield self.requests.get(1)
            frames = self.rows[batch] if batch < len(self.rows) else range(0)
            for frame in frames:
                yield self.images.get(1)
                yield from self.work("read", frame)
                yield from self.work("preprocess", frame)
            if len(frames) < self.loop.batch:
                yield self.images.get(1)
                yield from self.work("read", self.one.frames)
                yield self.images.put(1)
            if frames:
                yield self.filled.put(batch)

    def worker(self):
        while True:
            batch = yield self.filled.get()
            yield from self.work("infer", batch)
            if batch >= self.loop.results:
                yield self.popped[batch - self.loop.results]
            self.arrived[batch].succeed()

    def writer(self):
        for batch, frames in enumerate(self.rows):
            yield self.arrived[batch]
            self.popped[batch].succeed()
            for frame in frames:
                yield from self.work("head", frame)
            yield self.requests.put(1)
            for frame in frames:
                for stage in ("nms", "annotate", "write"):
                    yield from self.work(stage, frame)
                yield self.images.put(1)
