"""A small discrete-event kernel: threads that work, wait and share cores, in seconds that need not pass.

Cores are shared: each call keeps so many cores busy (its demand), and when the calls that run together want more than
there are, all slow down alike. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from detector.analysis.activities import LoopShape

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
            stage: [value * factors.get(stage, 1.0) for value in values] for stage, values in self.seconds.items()
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
            raise AssertionError(f"the replay stands still: {', '.join(sorted(self._waiting))} wait for ever")
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
            self._calls.append(Call(work.stage, work.number, name, self._started[name], self._now, work.beside))
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
