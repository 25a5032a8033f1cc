"""A recorded run, replayed on paper with durations that may be changed. Times are seconds.

The replay is a discrete-event simulation. Each thread of the loop is a generator that yields its
next step: ``Work`` (a call that takes time) or ``Until`` (a wait for a queue or a pool). The
generators mirror the code in detector/core/loop, so they wait exactly where the loop waits. The
simulation keeps a clock: it lets all running calls proceed until the first one ends, advances that
thread, and wakes every thread whose wait is over.

Calls share the cores. Each keeps a number of cores busy (its demand). When the running calls want
more cores than there are, all of them slow down by the same factor.

Libraries work beside the calls too: a decoder works ahead of ``read``, and an encoder goes on after
``write``, each as far as it has room. They are threads of the simulation like the others.

The file holds what a run has to do (``Load``), the threads of the loop, the threads of libraries,
and the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from detector.core.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE
from detector.lab.analysis.loop.activities import LoopShape

__all__ = ["Beside", "Call", "Load", "replay", "wall"]

EPSILON = 1e-12  # seconds: what rounding may leave of a call


@dataclass(frozen=True, slots=True)
class Beside:
    """What threads of a stage's library do for each frame beside the stage's calls.

    ``seconds``: for each frame, one after the other. ``demand``: cores that they keep busy
    meanwhile. ``room``: how many frames ``read`` hands over at once, counting the one that it waits
    for; or how many ``write`` leaves behind before it waits for the first of them.
    """

    seconds: Sequence[float]
    demand: float
    room: int


@dataclass(frozen=True, slots=True)
class Load:
    """What a run has to do.

    ``seconds[stage][index]``: how long a call takes with the computer to itself, per frame, and for
    infer per batch. ``demand[stage]``: cores that a call keeps busy. ``between[stage]``: seconds
    that the thread spends outside of any stage after each call. ``frames``: how many; one more read
    call finds the end. ``beside``: of read and write, where their libraries work on their own.
    """

    frames: int
    shape: LoopShape
    seconds: Mapping[str, Sequence[float]]
    demand: Mapping[str, float] = field(default_factory=dict)
    between: Mapping[str, float] = field(default_factory=dict)
    cores: float = math.inf
    beside: Mapping[str, Beside] = field(default_factory=dict)

    @property
    def batches(self) -> int:
        return -(-self.frames // self.shape.batch)

    def rows(self, batch: int) -> range:
        """The frames of a batch; the last batch may have fewer."""
        return range(batch * self.shape.batch, min((batch + 1) * self.shape.batch, self.frames))

    def call_s(self, stage: str, index: int) -> float:
        calls = self.seconds.get(stage, ())
        return calls[index] if index < len(calls) else 0.0

    def beside_s(self, stage: str, index: int) -> float:
        calls = self.beside[stage].seconds
        return calls[index] if index < len(calls) else 0.0

    def scaled(self, factors: Mapping[str, float]) -> Load:
        """The same load with longer or shorter calls of some stages. Their CPU time changes by the
        same factor."""
        seconds = {
            stage: [value * factors.get(stage, 1.0) for value in values]
            for stage, values in self.seconds.items()
        }
        beside = {
            stage: replace(one, seconds=[value * factors.get(stage, 1.0) for value in one.seconds])
            for stage, one in self.beside.items()
        }
        return replace(self, seconds=seconds, beside=beside)


class Call(NamedTuple):
    """A call as it was replayed, in seconds since the start. ``beside``: it is not the stage's own
    call, but its library's work for it."""

    stage: str
    number: int
    thread: str
    start: float
    end: float
    beside: bool = False


def replay(load: Load) -> list[Call]:
    """All calls of the loop that ``load.shape`` describes, ordered by their start."""
    libraries = _Libraries(load)
    loop = _plain_loop(load, libraries) if load.shape.sync else _threaded_loop(load, libraries)
    return _Simulation(load, loop | libraries.threads()).run()


def wall(calls: Sequence[Call]) -> float:
    """Seconds until the last call of a stage ends. Work that a library still does then belongs to
    closing the files."""
    return max((call.end for call in calls if not call.beside), default=0.0)


# ----------------------------------------------------------------------
# Steps of a thread


class Work(NamedTuple):
    """A call that takes as long as the load says."""

    stage: str
    number: int
    beside: bool = False


class Until(NamedTuple):
    """A wait until ``ready()``; then ``take()`` happens at once."""

    ready: Callable[[], bool]
    take: Callable[[], None]


Step = Work | Until
Thread = Generator[Step, None, None]


class _Places:
    """Free places of a queue or free items of a pool."""

    def __init__(self, count: int) -> None:
        self.free = count

    def take(self) -> Until:
        return Until(lambda: self.free > 0, self._take_one)

    def _take_one(self) -> None:
        self.free -= 1


def _nothing() -> None:
    return None


# ----------------------------------------------------------------------
# The threads of the loop, as in detector/core/loop


@dataclass(slots=True)
class _State:
    """What the threads of the loop share. ``filled``: batches in the queue; ``done``: results."""

    requests: _Places
    images: _Places
    filled: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    next_result: int = 0
    finished: bool = False


def _plain_loop(load: Load, libraries: _Libraries) -> dict[str, Thread]:
    """One thread does everything in turn."""

    def main() -> Thread:
        for batch in range(load.batches):
            for frame in load.rows(batch):
                yield from libraries.read(frame)
                yield Work(PREPROCESS, frame)
            yield Work(INFER, batch)
            for frame in load.rows(batch):
                yield Work(HEAD, frame)
            for frame in load.rows(batch):
                yield Work(NMS, frame)
                yield Work(ANNOTATE, frame)
                yield from libraries.write(frame)
        yield Work(READ, load.frames)

    return {"main": main()}


def _threaded_loop(load: Load, libraries: _Libraries) -> dict[str, Thread]:
    """A reader, one worker for each request that runs at once, and a writer."""
    state = _State(_Places(load.shape.requests), _Places(load.shape.images))
    workers = {f"worker-{number}": _worker(load, state) for number in range(load.shape.concurrency)}
    return {
        "reader": _reader(load, state, libraries),
        **workers,
        "writer": _writer(load, state, libraries),
    }


def _reader(load: Load, state: _State, libraries: _Libraries) -> Thread:
    """As ``fill`` of the loop. The call that finds the end needs a place for a picture too, and a
    request where a batch would begin."""
    for batch in range(load.frames // load.shape.batch + 1):
        yield state.requests.take()
        rows = load.rows(batch)
        for frame in rows:
            yield state.images.take()
            yield from libraries.read(frame)
            yield Work(PREPROCESS, frame)
        if len(rows) < load.shape.batch:
            yield state.images.take()
            yield Work(READ, load.frames)
            state.images.free += 1
        if rows:
            yield Until(
                lambda: len(state.filled) < load.shape.queue_batches,
                lambda b=batch: state.filled.append(b),  # type: ignore[misc]
            )
    state.finished = True


def _worker(load: Load, state: _State) -> Thread:
    got: list[int] = []
    while True:
        yield Until(
            lambda: bool(state.filled) or state.finished,
            lambda: got.append(state.filled.pop(0) if state.filled else -1),
        )
        batch = got.pop()
        if batch < 0:
            return
        yield Work(INFER, batch)
        yield Until(
            lambda b=batch: b < state.next_result + load.shape.results,  # type: ignore[misc]
            lambda b=batch: state.done.add(b),  # type: ignore[misc]
        )


def _writer(load: Load, state: _State, libraries: _Libraries) -> Thread:
    def take_result(batch: int) -> None:
        state.done.remove(batch)
        state.next_result = batch + 1

    for batch in range(load.batches):
        yield Until(
            lambda b=batch: b in state.done,  # type: ignore[misc]
            lambda b=batch: take_result(b),  # type: ignore[misc]
        )
        for frame in load.rows(batch):
            yield Work(HEAD, frame)
        state.requests.free += 1
        for frame in load.rows(batch):
            yield Work(NMS, frame)
            yield Work(ANNOTATE, frame)
            yield from libraries.write(frame)
            state.images.free += 1


# ----------------------------------------------------------------------
# The threads of libraries


class _Libraries:
    """The calls of read and write, and the threads of their libraries. All four counters count
    frames: requested from the decoder, decoded, sent to the encoder, encoded."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._requested = self._decoded = self._sent = self._encoded = 0

    def threads(self) -> dict[str, Thread]:
        made = {READ: self._decoder, WRITE: self._encoder}
        return {f"{stage}, beside": made[stage]() for stage in self._load.beside}

    def read(self, frame: int) -> Thread:
        """Hands the decoder as many frames as it has room for, and waits for this one. The call
        that finds the end waits for none."""
        ahead = self._load.beside.get(READ)
        if ahead is not None and frame < self._load.frames:
            self._requested = min(self._load.frames, frame + ahead.room)
            yield Until(lambda: self._decoded > frame, _nothing)
        yield Work(READ, frame)

    def write(self, frame: int) -> Thread:
        """Waits after the call where the encoder has no room for the frame."""
        yield Work(WRITE, frame)
        behind = self._load.beside.get(WRITE)
        if behind is not None:
            yield Until(lambda: self._sent - self._encoded < behind.room, self._send)

    def _send(self) -> None:
        self._sent += 1

    def _decoder(self) -> Thread:
        for frame in range(self._load.frames):
            yield Until(lambda f=frame: self._requested > f, _nothing)  # type: ignore[misc]
            yield Work(READ, frame, beside=True)
            self._decoded += 1

    def _encoder(self) -> Thread:
        for frame in range(self._load.frames):
            yield Until(lambda f=frame: self._sent > f, _nothing)  # type: ignore[misc]
            yield Work(WRITE, frame, beside=True)
            self._encoded += 1


# ----------------------------------------------------------------------
# The simulation


class _Simulation:
    """Runs threads side by side. The clock jumps from the end of one call to the end of the
    next."""

    def __init__(self, load: Load, threads: dict[str, Thread]) -> None:
        self._load, self._threads = load, threads
        self._waiting: dict[str, Until] = {}
        self._running: dict[str, Work] = {}
        self._left: dict[str, float] = {}  # seconds of work left, with the computer to itself
        self._started: dict[str, float] = {}
        self._now = 0.0
        self._calls: list[Call] = []

    def run(self) -> list[Call]:
        """Raises AssertionError where all threads wait for each other."""
        for name in list(self._threads):
            self._advance(name)
        self._wake()
        while self._left:
            pace = self._pace()
            step = min(self._left.values()) / pace
            self._now += step
            for name in self._left:
                self._left[name] -= step * pace
            for name in [name for name, left in self._left.items() if left <= EPSILON]:
                self._finish(name)
            self._wake()
        if self._waiting:
            raise AssertionError(
                f"the replay stands still: {', '.join(sorted(self._waiting))} wait for ever"
            )
        self._calls.sort(key=lambda call: (call.start, call.end))
        return self._calls

    def _pace(self) -> float:
        """Progress a second of every running call; below 1 where the cores do not suffice."""
        wanted = sum(self._demand(work) for work in self._running.values())
        return min(1.0, self._load.cores / wanted) if wanted else 1.0

    def _demand(self, work: Work) -> float:
        if work.beside:
            return self._load.beside[work.stage].demand
        return self._load.demand.get(work.stage, 1.0)

    def _finish(self, name: str) -> None:
        """Ends the thread's call; the time between two calls is a call without a stage."""
        work = self._running.pop(name)
        del self._left[name]
        if work.stage:
            self._calls.append(
                Call(work.stage, work.number, name, self._started[name], self._now, work.beside)
            )
            rest = 0.0 if work.beside else self._load.between.get(work.stage, 0.0)
            if rest:
                self._begin(name, Work("", 0), rest)
                return
        self._advance(name)

    def _begin(self, name: str, work: Work, seconds: float) -> None:
        self._running[name], self._left[name], self._started[name] = work, seconds, self._now

    def _advance(self, name: str) -> None:
        """Takes the thread's next step, if it has one."""
        step = next(self._threads[name], None)
        if isinstance(step, Work):
            seconds = self._load.beside_s if step.beside else self._load.call_s
            self._begin(name, step, seconds(step.stage, step.number))
        elif step is not None:
            self._waiting[name] = step

    def _wake(self) -> None:
        """Advances every thread whose wait is over, and repeats: one may give what another waits
        for."""
        woke = True
        while woke:
            woke = False
            for name, step in list(self._waiting.items()):
                if step.ready():
                    del self._waiting[name]
                    step.take()
                    self._advance(name)
                    woke = True
