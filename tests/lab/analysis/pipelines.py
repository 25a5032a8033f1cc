"""Runs with known durations: a load's replay as a recorded run, and the same loop told to SimPy,
another simulator.
"""

from __future__ import annotations

from dataclasses import replace

import simpy

from detector.core.timeline import STAGES
from detector.lab.analysis.loop.activities import Activity, LoopShape
from detector.lab.analysis.loop.replay import Beside, Call, Load, replay

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


def with_libraries(one: Load, **each: tuple[list[float], int]) -> Load:
    """Threads of a library beside the calls of read or write: seconds a frame, and the room."""
    return replace(
        one, beside={stage: Beside(seconds, 1.0, room) for stage, (seconds, room) in each.items()}
    )


def recorded(calls: list[Call]) -> list[Activity]:
    """As the instruments see it: what libraries do beside the calls is not among the spans."""
    return [
        Activity(c.stage, c.number, c.thread, round(c.start * 1e9), round(c.end * 1e9))
        for c in calls
        if not c.beside
    ]


def run_of(one: Load) -> list[Activity]:
    return recorded(replay(one))


Calls = dict[tuple[str, int, bool], tuple[float, float]]


def by_simpy(one: Load) -> Calls:
    """(stage, number, beside) -> start and end, as SimPy's own stores, containers and processes see
    the loop.
    """
    return _Loop(one).run()


class _Loop:
    def __init__(self, one: Load) -> None:
        loop = one.shape
        self.one, self.loop, self.env = one, loop, simpy.Environment()
        self.calls: Calls = {}
        self.requests = simpy.Container(self.env, loop.requests, loop.requests)
        self.images = simpy.Container(self.env, loop.images, loop.images)
        self.filled = simpy.Store(self.env, loop.queue_batches)
        count = -(-one.frames // loop.batch)
        self.rows = [
            range(b * loop.batch, min((b + 1) * loop.batch, one.frames)) for b in range(count)
        ]
        self.arrived = [self.env.event() for _ in self.rows]
        self.popped = [self.env.event() for _ in self.rows]
        # The decoder takes what was handed over and lays what it decoded on a shelf; the encoder
        # gives room back.
        self.packets, self.handed = simpy.Store(self.env), 0
        self.decoded = [self.env.event() for _ in range(one.frames)]
        self.pictures = simpy.Store(self.env)
        room = one.beside["write"].room if "write" in one.beside else 1
        self.room = simpy.Container(self.env, room, room)

    def run(self) -> Calls:
        loop = (
            [self.in_turn()] if self.loop.sync else [self.reader(), *self.workers(), self.writer()]
        )
        libraries = {"read": self.decoder, "write": self.encoder}
        for process in (*loop, *(libraries[stage]() for stage in self.one.beside)):
            self.env.process(process)
        self.env.run()
        return self.calls

    def workers(self):
        return (self.worker() for _ in range(self.loop.concurrency))

    def work(self, stage: str, number: int, beside: bool = False):
        start = self.env.now
        yield self.env.timeout((self.one.beside_s if beside else self.one.call_s)(stage, number))
        self.calls[stage, number, beside] = (start, self.env.now)

    def read(self, frame: int):
        if "read" in self.one.beside and frame < self.one.frames:
            while self.handed < min(self.one.frames, frame + self.one.beside["read"].room):
                yield self.packets.put(self.handed)
                self.handed += 1
            yield self.decoded[frame]
        yield from self.work("read", frame)

    def write(self, frame: int):
        yield from self.work("write", frame)
        if "write" in self.one.beside:
            yield self.room.get(1)
            yield self.pictures.put(frame)

    def decoder(self):
        for _ in range(self.one.frames):
            frame = yield self.packets.get()
            yield from self.work("read", frame, beside=True)
            self.decoded[frame].succeed()

    def encoder(self):
        for _ in range(self.one.frames):
            frame = yield self.pictures.get()
            yield from self.work("write", frame, beside=True)
            yield self.room.put(1)

    def in_turn(self):
        for batch, frames in enumerate(self.rows):
            for frame in frames:
                yield from self.read(frame)
                yield from self.work("preprocess", frame)
            yield from self.work("infer", batch)
            for frame in frames:
                yield from self.work("head", frame)
            for frame in frames:
                yield from self.work("nms", frame)
                yield from self.work("annotate", frame)
                yield from self.write(frame)
        yield from self.work("read", self.one.frames)

    def reader(self):
        for batch in range(self.one.frames // self.loop.batch + 1):
            yield self.requests.get(1)
            frames = self.rows[batch] if batch < len(self.rows) else range(0)
            for frame in frames:
                yield self.images.get(1)
                yield from self.read(frame)
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
                yield from self.work("nms", frame)
                yield from self.work("annotate", frame)
                yield from self.write(frame)
                yield self.images.put(1)
