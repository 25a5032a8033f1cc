"""Simulated runs: from given durations, compute when each call of a loop starts and ends.

The times of a batch depend only on earlier batches, so one pass over the batches is enough.
``test_real_run_obeys_the_graph`` checks the same rules against real runs of the loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detector.core.timeline.spans import STAGES
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
    """How long each call of a run takes: ``seconds[stage][number]``. The last read finds the end of
    the source. ``by_writer``: the writer runs head and nms, as it did until version 0.2."""

    frames: int
    shape: LoopShape
    seconds: Mapping[str, Sequence[float]]
    by_writer: bool = False


def load(frames: int, loop: LoopShape, by_writer=False, **each: float | list[float]) -> Load:
    """Build a load. ``each``: per stage, the seconds of its calls, or one number for all calls."""
    batches = -(-frames // loop.batch)
    seconds = {}
    for stage in STAGES:
        value = each.get(stage, 0.0)
        count = batches if stage == "infer" else frames + (stage == "read")
        seconds[stage] = value if isinstance(value, list) else [value] * count
    if not isinstance(each.get("read", 0.0), list):
        seconds["read"][-1] = 0.0  # finding the end costs nothing
    return Load(frames, loop, seconds, by_writer)


def run_of(run_load: Load) -> list[Activity]:
    """Return all calls as the instruments would record them, sorted by start."""
    simulation = _Simulation(run_load)
    simulation.in_turn() if run_load.shape.sync else simulation.overlapped()
    return sorted(simulation.calls, key=lambda call: (call.start_ns, call.end_ns))


class _Simulation:
    def __init__(self, load: Load) -> None:
        self.load, self.loop = load, load.shape
        self.calls: list[Activity] = []
        self.clock: dict[str, float] = {}  # thread -> time when it is free
        self.ends: dict[tuple[str, int], float] = {}
        self.taken: dict[int, float] = {}  # batch -> when the writer took it
        self.began: dict[int, float] = {}  # batch -> when its inference began
        self.returned: list[float] = []  # when each request was returned, sorted

    def call(self, thread: str, stage: str, number: int) -> None:
        start = self.clock.get(thread, 0.0)
        end = start + self.load.seconds[stage][number]
        self.ends[stage, number] = end
        self.clock[thread] = end
        self.calls.append(Activity(stage, number, thread, round(start * 1e9), round(end * 1e9)))

    def wait(self, thread: str, when: float | None) -> None:
        """Let a thread wait until ``when``. If ``when`` is None, it does not wait."""
        self.clock[thread] = max(self.clock.get(thread, 0.0), when or 0.0)

    def rows(self, batch: int) -> range:
        size = self.loop.batch
        return range(batch * size, min((batch + 1) * size, self.load.frames))

    def in_turn(self) -> None:
        for batch in range(-(-self.load.frames // self.loop.batch)):
            for frame in self.rows(batch):
                self.call("main", "read", frame)
                self.call("main", "preprocess", frame)
            self.call("main", "infer", batch)
            self.detect("main", batch)
            self.write("main", batch)
        self.call("main", "read", self.load.frames)

    def detect(self, thread: str, batch: int) -> None:
        for frame in self.rows(batch):
            self.call(thread, "head", frame)
        self.returned = sorted([*self.returned, self.clock[thread]])
        for frame in self.rows(batch):
            self.call(thread, "nms", frame)

    def write(self, thread: str, batch: int) -> None:
        for frame in self.rows(batch):
            for stage in ("annotate", "write"):
                self.call(thread, stage, frame)

    def overlapped(self) -> None:
        for batch in range(self.load.frames // self.loop.batch + 1):
            self.read(batch)
            if self.rows(batch):
                self.wait("writer", self.infer(batch))
                self.taken[batch] = self.clock["writer"]
                if self.load.by_writer:
                    self.detect("writer", batch)
                self.write("writer", batch)

    def read(self, batch: int) -> None:
        """Take a request, and for each row of the batch read a frame into a buffer. The read that
        finds the end also needs a request and a buffer. Queue the batch once there is room."""
        if batch >= self.loop.requests:
            self.wait("reader", self.returned[batch - self.loop.requests])
        rows = self.rows(batch)
        for frame in rows:
            self.wait("reader", self.ends.get(("write", frame - self.loop.images)))
            self.call("reader", "read", frame)
            self.call("reader", "preprocess", frame)
        if len(rows) < self.loop.batch:
            end = self.load.frames
            self.wait("reader", self.ends.get(("write", end - self.loop.images)))
            self.call("reader", "read", end)
        if rows:
            self.wait("reader", self.began.get(batch - self.loop.queue_batches))

    def infer(self, batch: int) -> float:
        """Infer on the first free worker, and return the time at which the result is ready. The
        worker then waits for room in the queue of results, which the writer empties."""
        workers = [f"worker-{at}" for at in range(self.loop.concurrency)]
        thread = min(workers, key=lambda name: self.clock.get(name, 0.0))
        self.wait(thread, self.clock["reader"])
        self.began[batch] = self.clock[thread]
        self.call(thread, "infer", batch)
        if not self.load.by_writer:
            self.detect(thread, batch)
        done = self.clock[thread]
        self.wait(thread, self.taken.get(batch - self.loop.results))
        return done


def mean_depth(steps: Steps) -> float:
    times, levels = steps
    return float(np.sum(levels[:-1] * np.diff(times)) / (times[-1] - times[0]))
