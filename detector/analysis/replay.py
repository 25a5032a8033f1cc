"""A run played again on paper: the loop's threads, queues and pools, with durations that may be changed.

The threads are written down as in ``loop/``: each is a generator of what it does (work, take, give). A small
discrete-event kernel runs them. Cores are shared: each call keeps so many cores busy (its demand), and when the calls
that run together want more than there are, all slow down alike. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from detector.analysis.activities import LoopShape
from detector.timeline.stages import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE

EPSILON = 1e-12  # seconds; what is left of a call after the roundings of its parts

WRITER_STAGES = (NMS, ANNOTATE, WRITE)


@dataclass(frozen=True, slots=True)
class Load:
    """What a run has to do. ``seconds[stage][index]``: how long a call takes with the machine to itself, per frame,
    infer per batch. ``demand[stage]``: cores that it keeps busy meanwhile. ``between``: seconds that a thread spends
    after each call of a stage on what is no stage. ``frames``: how many; the read call that finds the end is one more.
    """

    frames: int
    shape: LoopShape
    seconds: Mapping[str, Sequence[float]]
    demand: Mapping[str, float] = field(default_factory=dict)
    between: Mapping[str, float] = field(default_factory=dict)
    cores: float = math.inf

    def of(self, stage: str, index: int) -> float:
        calls = self.seconds.get(stage, ())
        return calls[index] if index < len(calls) else 0.0

    def scaled(self, factors: Mapping[str, float]) -> Load:
        """With the calls of some stages longer or shorter; what they burn changes alike."""
        seconds = {
            stage: [value * factors.get(stage, 1.0) for value in values] for stage, values in self.seconds.items()
        }
        return replace(self, seconds=seconds)


class Call(NamedTuple):
    """One call as it was played: seconds from the start."""

    stage: str
    number: int
    thread: str
    start: float
    end: float


class Work(NamedTuple):
    stage: str
    number: int


class Until(NamedTuple):
    """Waits until ``ready()``; then ``take()`` happens at once."""

    ready: Callable[[], bool]
    take: Callable[[], None]


Step = Work | Until
Thread = Generator[Step, None, None]


def replay(load: Load) -> list[Call]:
    """All calls, by start. Plays the loop that ``load.shape`` describes."""
    return Kernel(load, _in_turn(load) if load.shape.sync else _overlapped(load)).run()


def wall(calls: Sequence[Call]) -> float:
    return max((call.end for call in calls), default=0.0)


class Kernel:
    """Runs threads side by side. Time jumps from one end of a call to the next."""

    def __init__(self, load: Load, threads: dict[str, Thread]) -> None:
        self._load, self._threads = load, threads
        self._waiting: dict[str, Until] = {}
        self._left: dict[str, float] = {}  # seconds of work left, with the machine to itself
        self._running: dict[str, Work] = {}
        self._started: dict[str, float] = {}
        self._now = 0.0
        self._calls: list[Call] = []

    def run(self) -> list[Call]:
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
            raise AssertionError(f"the replay stands still: {', '.join(sorted(self._waiting))} wait for ever")
        self._calls.sort(key=lambda call: (call.start, call.end))
        return self._calls

    def _pace(self) -> float:
        wanted = sum(self._load.demand.get(work.stage, 1.0) for work in self._running.values())
        return min(1.0, self._load.cores / wanted) if wanted else 1.0

    def _finish(self, name: str) -> None:
        work = self._running.pop(name)
        del self._left[name]
        if work.stage:
            self._calls.append(Call(work.stage, work.number, name, self._started[name], self._now))
            rest = self._load.between.get(work.stage, 0.0)
            if rest:
                self._begin(name, Work("", 0), rest)
                return
        self._advance(name)

    def _begin(self, name: str, work: Work, seconds: float) -> None:
        self._running[name], self._left[name], self._started[name] = work, seconds, self._now

    def _advance(self, name: str) -> None:
        step = next(self._threads[name], None)
        if isinstance(step, Work):
            self._begin(name, step, self._load.of(step.stage, step.number))
        elif step is not None:
            self._waiting[name] = step

    def _wake(self) -> None:
        """Everybody whose wait is over, again and again: one may give what the next one waits for."""
        woke = True
        while woke:
            woke = False
            for name, step in list(self._waiting.items()):
                if step.ready():
                    del self._waiting[name]
                    step.take()
                    self._advance(name)
                    woke = True


class _Room:
    """A counted room: places in a queue, things in a pool."""

    def __init__(self, count: int) -> None:
        self.free = count

    def take(self) -> Until:
        return Until(lambda: self.free > 0, self._less)

    def _less(self) -> None:
        self.free -= 1


@dataclass(slots=True)
class _State:
    requests: _Room
    images: _Room
    filled: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    next_result: int = 0
    finished: bool = False


def _rows(load: Load, batch: int) -> range:
    return range(batch * load.shape.batch, min((batch + 1) * load.shape.batch, load.frames))


def _batches(load: Load) -> int:
    return -(-load.frames // load.shape.batch)


def _overlapped(load: Load) -> dict[str, Thread]:
    state = _State(_Room(load.shape.requests), _Room(load.shape.images))
    workers = {f"worker-{number}": _worker(load, state) for number in range(load.shape.concurrency)}
    return {"reader": _reader(load, state), **workers, "writer": _writer(load, state)}


def _reader(load: Load, state: _State) -> Thread:
    """As ``fill``: the call that finds the end needs a picture's place too, and a request where a batch would begin."""
    for batch in range(load.frames // load.shape.batch + 1):
        yield state.requests.take()
        rows = _rows(load, batch)
        for frame in rows:
            yield state.images.take()
            yield Work(READ, frame)
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


def _writer(load: Load, state: _State) -> Thread:
    for batch in range(_batches(load)):
        yield Until(lambda b=batch: b in state.done, lambda b=batch: _pop(state, b))  # type: ignore[misc]
        for frame in _rows(load, batch):
            yield Work(HEAD, frame)
        state.requests.free += 1
        for frame in _rows(load, batch):
            for stage in WRITER_STAGES:
                yield Work(stage, frame)
            state.images.free += 1


def _pop(state: _State, batch: int) -> None:
    state.done.remove(batch)
    state.next_result = batch + 1


def _in_turn(load: Load) -> dict[str, Thread]:
    def main() -> Thread:
        for batch in range(_batches(load)):
            for frame in _rows(load, batch):
                yield Work(READ, frame)
                yield Work(PREPROCESS, frame)
            yield Work(INFER, batch)
            for frame in _rows(load, batch):
                yield Work(HEAD, frame)
            for frame in _rows(load, batch):
                for stage in WRITER_STAGES:
                    yield Work(stage, frame)
        yield Work(READ, load.frames)

    return {"main": main()}
