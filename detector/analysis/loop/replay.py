"""A run played again on paper: the loop's threads, queues and pools, with durations that may be changed.

The threads are written down as in ``loop/``: each is a generator of what it does (work, take, give), and ``kernel.py``
runs them. What libraries do beside the calls is played too: a decoder works ahead of ``read``, an encoder goes on after
``write``, each as far as it has room. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from detector.analysis.loop.activities import LoopShape
from detector.timeline.spans import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE

# ----------------------------------------------------------------------
# A small discrete-event kernel: threads that work, wait and share cores, in seconds that need not pass.
#
# Cores are shared: each call keeps so many cores busy (its demand), and when the calls that run together want more than
# there are, all slow down alike. Times are seconds.

EPSILON = 1e-12  # seconds; what is left of a call after the roundings of its parts


@dataclass(frozen=True, slots=True)
class Beside:
    """What threads of a stage's library do for each frame beside its calls, one after the other. ``demand``: cores that
    they keep busy meanwhile. ``room``: frames that ``read`` hands over ahead of the one it waits for, that one
    included; or that ``write`` leaves behind before it waits for the first of them."""

    seconds: Sequence[float]
    demand: float
    room: int


@dataclass(frozen=True, slots=True)
class Load:
    """What a run has to do. ``seconds[stage][index]``: how long a call takes with the machine to itself, per frame,
    infer per batch. ``demand[stage]``: cores that it keeps busy meanwhile. ``between``: seconds that a thread spends
    after each call of a stage on what is no stage. ``frames``: how many; the read call that finds the end is one more.
    ``beside``: of read and write, where their libraries work on their own.
    """

    frames: int
    shape: LoopShape
    seconds: Mapping[str, Sequence[float]]
    demand: Mapping[str, float] = field(default_factory=dict)
    between: Mapping[str, float] = field(default_factory=dict)
    cores: float = math.inf
    beside: Mapping[str, Beside] = field(default_factory=dict)

    def of(self, stage: str, index: int) -> float:
        calls = self.seconds.get(stage, ())
        return calls[index] if index < len(calls) else 0.0

    def aside(self, stage: str, index: int) -> float:
        calls = self.beside[stage].seconds
        return calls[index] if index < len(calls) else 0.0

    def scaled(self, factors: Mapping[str, float]) -> Load:
        """With the calls of some stages longer or shorter; what they burn changes alike."""
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
    """One call as it was played: seconds from the start. ``beside``: not the stage's own call, but its library's work
    for it."""

    stage: str
    number: int
    thread: str
    start: float
    end: float
    beside: bool = False


class Work(NamedTuple):
    stage: str
    number: int
    beside: bool = False


class Until(NamedTuple):
    """Waits until ``ready()``; then ``take()`` happens at once."""

    ready: Callable[[], bool]
    take: Callable[[], None]


Step = Work | Until
Thread = Generator[Step, None, None]


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
            raise AssertionError(
                f"the replay stands still: {', '.join(sorted(self._waiting))} wait for ever"
            )
        self._calls.sort(key=lambda call: (call.start, call.end))
        return self._calls

    def _pace(self) -> float:
        wanted = sum(self._wanted(work) for work in self._running.values())
        return min(1.0, self._load.cores / wanted) if wanted else 1.0

    def _wanted(self, work: Work) -> float:
        if work.beside:
            return self._load.beside[work.stage].demand
        return self._load.demand.get(work.stage, 1.0)

    def _finish(self, name: str) -> None:
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
        step = next(self._threads[name], None)
        if isinstance(step, Work):
            seconds = self._load.aside if step.beside else self._load.of
            self._begin(name, step, seconds(step.stage, step.number))
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


__all__ = ["Beside", "Call", "Load", "replay", "wall"]


def replay(load: Load) -> list[Call]:
    """All calls, by start. Plays the loop that ``load.shape`` describes."""
    libraries = _Libraries(load)
    loop = _in_turn(load, libraries) if load.shape.sync else _overlapped(load, libraries)
    return Kernel(load, loop | libraries.threads()).run()


def wall(calls: Sequence[Call]) -> float:
    """Until the last call of a stage has ended; what a library still does then is the closing's."""
    return max((call.end for call in calls if not call.beside), default=0.0)


class _Room:
    """A counted room: places in a queue, things in a pool."""

    def __init__(self, count: int) -> None:
        self.free = count

    def take(self) -> Until:
        return Until(lambda: self.free > 0, self._less)

    def _less(self) -> None:
        self.free -= 1


class _Libraries:
    """The calls of read and write, with what their libraries do beside them. Counts, of frames, both ways."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._asked = self._decoded = self._sent = self._encoded = 0

    def threads(self) -> dict[str, Thread]:
        made = {READ: self._decoder, WRITE: self._encoder}
        return {f"{stage}, beside": made[stage]() for stage in self._load.beside}

    def read(self, frame: int) -> Thread:
        """Hands over as many frames as there is room for, waits for its own. The call that finds the end waits for
        none."""
        ahead = self._load.beside.get(READ)
        if ahead is not None and frame < self._load.frames:
            self._asked = min(self._load.frames, frame + ahead.room)
            yield Until(lambda: self._decoded > frame, _nothing)
        yield Work(READ, frame)

    def write(self, frame: int) -> Thread:
        yield Work(WRITE, frame)
        behind = self._load.beside.get(WRITE)
        if behind is not None:
            yield Until(lambda: self._sent - self._encoded < behind.room, self._send)

    def _send(self) -> None:
        self._sent += 1

    def _decoder(self) -> Thread:
        for frame in range(self._load.frames):
            yield Until(lambda f=frame: self._asked > f, _nothing)  # type: ignore[misc]
            yield Work(READ, frame, beside=True)
            self._decoded += 1

    def _encoder(self) -> Thread:
        for frame in range(self._load.frames):
            yield Until(lambda f=frame: self._sent > f, _nothing)  # type: ignore[misc]
            yield Work(WRITE, frame, beside=True)
            self._encoded += 1


def _nothing() -> None:
    return None


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


def _overlapped(load: Load, libraries: _Libraries) -> dict[str, Thread]:
    state = _State(_Room(load.shape.requests), _Room(load.shape.images))
    workers = {f"worker-{number}": _worker(load, state) for number in range(load.shape.concurrency)}
    return {
        "reader": _reader(load, state, libraries),
        **workers,
        "writer": _writer(load, state, libraries),
    }


def _reader(load: Load, state: _State, libraries: _Libraries) -> Thread:
    """As ``fill``: the call that finds the end needs a picture's place too, and a request where a batch would begin."""
    for batch in range(load.frames // load.shape.batch + 1):
        yield state.requests.take()
        rows = _rows(load, batch)
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
    for batch in range(_batches(load)):
        yield Until(lambda b=batch: b in state.done, lambda b=batch: _pop(state, b))  # type: ignore[misc]
        for frame in _rows(load, batch):
            yield Work(HEAD, frame)
        state.requests.free += 1
        for frame in _rows(load, batch):
            yield Work(NMS, frame)
            yield Work(ANNOTATE, frame)
            yield from libraries.write(frame)
            state.images.free += 1


def _pop(state: _State, batch: int) -> None:
    state.done.remove(batch)
    state.next_result = batch + 1


def _in_turn(load: Load, libraries: _Libraries) -> dict[str, Thread]:
    def main() -> Thread:
        for batch in range(_batches(load)):
            for frame in _rows(load, batch):
                yield from libraries.read(frame)
                yield Work(PREPROCESS, frame)
            yield Work(INFER, batch)
            for frame in _rows(load, batch):
                yield Work(HEAD, frame)
            for frame in _rows(load, batch):
                yield Work(NMS, frame)
                yield Work(ANNOTATE, frame)
                yield from libraries.write(frame)
        yield Work(READ, load.frames)

    return {"main": main()}
