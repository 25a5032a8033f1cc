"""The pool of this machine: processes, each with its share of the cores and one engine.

If a process crashes, only its item is lost. A process is killed if its item takes longer than the
user allows, or yields no frame for five minutes.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from detector.batch.item import Task
from detector.batch.pool import MOST_FAILED_LOADS, TICK_S, Gone, Place, Places
from detector.batch.settings import LoadedFacts, digest_of
from detector.batch.worker import Opening, Order, PoolReply
from detector.core.errors import EXIT_ENGINE, error_of_code
from detector.core.errors.text import counted
from detector.core.run.child import GRACE_S, Child, end, python_command, receive, send
from detector.core.run.signals import Stop, Stopped
from detector.core.session import codec
from detector.core.session.codec import to_builtins

STALL_S = 300.0  # time limit without a frame
LOADING_S = 3600.0  # long, since an engine may have to build its file first


def share_cores(cores: Sequence[int], workers: int) -> list[list[int]]:
    """Return each worker's cores: adjacent ones, or all if there are more workers than cores."""
    if workers > len(cores):
        return [list(cores)] * workers
    bounds = [number * len(cores) // workers for number in range(workers + 1)]
    return [list(cores[a:b]) for a, b in pairwise(bounds)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits in seconds. ``item``: for one item; None: no limit while it yields frames."""

    item: float | None = None
    stall: float = STALL_S
    loading: float = LOADING_S


@dataclass(slots=True, kw_only=True)
class _LocalPlace(Place):
    cores: list[int]
    folder: Path
    child: Child | None = None
    last_frame_at: float = 0.0  # time of the last frame, or of the task's start


@dataclass(slots=True)
class LocalPool(Places[_LocalPlace]):
    """Worker processes on this machine. ``folder``: temporary files of this pool, with a folder for
    each worker. ``place``: the job's output, a folder or an address. ``shares``: the cores of each
    worker. ``gathers``: whether rows also go into the dataset."""

    folder: Path
    place: str
    shares: list[list[int]]
    limits: Limits = field(default_factory=Limits)
    gathers: bool = False
    stop: Stop = field(default_factory=Stop)
    _opening: Opening | None = None
    _digest: str | None = None  # digest of the settings; None until they are resolved

    def load_first(
        self, config: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
    ) -> LoadedFacts:
        self._opening = Opening(
            config=config,
            place=self.place,
            pictures=list(pictures),
            resolves=resolves,
            gathers=self.gathers,
        )
        first = self._add_place(0)
        self._launch(first)
        while first.facts is None:
            if self.stop.is_set():
                assert self.stop.exit_code is not None
                raise Stopped(self.stop.exit_code)
            self._look(TICK_S)
            if not first.is_open():
                (gone,) = [event for event in self._events if isinstance(event, Gone)]
                self._events.clear()
                raise error_of_code(gone.exit_code)(gone.error)
        return first.facts

    def start(self, config: dict[str, dict[str, Any]], digest: str, most: int) -> None:
        assert self._opening is not None
        self._digest = digest
        self._opening = replace(self._opening, config=config, pictures=[], resolves=False)
        (first,) = self._places
        if first.facts is None or first.facts.config != config or digest_of(first.facts) != digest:
            self._end([first])
            self._launch(first)
        for number in range(1, min(most, len(self.shares))):
            self._launch(self._add_place(number))

    def _add_place(self, number: int) -> _LocalPlace:
        place = _LocalPlace(
            number=number,
            since=self.clock(),
            cores=self.shares[number],
            folder=self.folder / f"worker-{number}",
        )
        self._places.append(place)
        return place

    def _launch(self, place: _LocalPlace) -> None:
        assert self._opening is not None
        shutil.rmtree(place.folder, ignore_errors=True)  # files of a killed worker
        place.folder.mkdir()
        place.child = Child(
            lambda pipe: _command_line(self.folder, place.cores, pipe),
            place.folder / "stderr.txt",
            env={**os.environ, "TMPDIR": str(place.folder)},
        )
        place.facts, place.task = None, None
        place.starts += 1
        place.enter("loading", self.clock())
        self._send(place, Order(do="open", opening=self._opening))

    def _send(self, place: _LocalPlace, order: Order) -> None:
        assert place.child is not None
        with suppress(OSError):  # ``_read`` notices if the process has ended
            send(place.child.pipe, order)

    def _hand(self, place: _LocalPlace, task: Task) -> None:
        place.last_frame_at = place.since
        self._send(place, Order(do="item", task=to_builtins(task)))

    def _look(self, seconds: float) -> None:
        pipes = {place.child.pipe: place for place in self._places if place.child is not None}
        for pipe in wait(list(pipes), seconds):
            self._read(pipes[cast(Connection, pipe)])
        now = self.clock()
        for place in self._places:
            if (why := self._why_hanging(place, now)) is not None:
                self._kill(place)
                self._bury(place, why)

    def _read(self, place: _LocalPlace) -> None:
        assert place.child is not None
        try:
            answer = receive(place.child.pipe, PoolReply)
        except (EOFError, OSError):
            self._kill(place)
            self._bury(place, self._describe_death(place))
        else:
            self._hear(place, answer)

    def _hear(self, place: _LocalPlace, answer: PoolReply) -> None:
        if answer.kind == "frames":
            place.frames, place.last_frame_at = answer.frames, self.clock()
        elif answer.kind == "loaded":
            self._take_loaded(place, answer)
        elif place.task is None:
            self._fail_load(place, answer.error, answer.exit_code, final=self._digest is None)
        else:
            self._take_result(place, answer)

    def _take_loaded(self, place: _LocalPlace, answer: PoolReply) -> None:
        facts = codec.from_builtins(answer.facts, LoadedFacts, "a worker of batch")
        if self._digest is not None and digest_of(facts) != self._digest:
            text = f"{facts.model}: the model file has changed since the job started"
            self._fail_load(place, text, EXIT_ENGINE, final=True)
            return
        place.facts, place.failed_loads = facts, 0
        place.enter("idle", self.clock())

    def _take_result(self, place: _LocalPlace, answer: PoolReply) -> None:
        if answer.record is not None:
            self._finish_task(place, answer.record)
        else:
            self._fail_task(place, answer.error, answer.exit_code, lost=answer.broken)
        place.enter("idle", self.clock())
        if answer.broken:
            self._end([place])
            self._launch(place)

    def _why_hanging(self, place: _LocalPlace, now: float) -> str | None:
        if place.child is None:
            return None
        limits = self.limits
        if place.state == "loading" and now - place.since > limits.loading:
            return f"it did not load within {limits.loading:g} s"
        if place.state != "working":
            return None
        if limits.item is not None and now - place.since > limits.item:
            return f"it took longer than --item-timeout {limits.item:g}"
        if now - place.last_frame_at > limits.stall:
            return f"it produced no frame for {limits.stall:g} s"
        return None

    def _describe_death(self, place: _LocalPlace) -> str:
        assert place.child is not None
        doing = "while loading" if place.task is None else f"after {counted(place.frames, 'frame')}"
        return place.child.describe_death("the worker", doing)

    def _bury(self, place: _LocalPlace, why: str) -> None:
        """Report the item, if any, as failed. Start a new process unless too many loads failed."""
        self._end([place])
        if self._fail_task(place, why):
            self._launch(place)
        else:
            self._fail_load(place, why, EXIT_ENGINE)

    def _fail_load(
        self, place: _LocalPlace, why: str, exit_code: int, *, final: bool = False
    ) -> None:
        """``final``: abandon the place now, since another process would fail in the same way."""
        if place.state != "idle":  # an idle worker's death is not a failed load
            place.failed_loads += 1
        self._end([place])
        if final or place.failed_loads >= MOST_FAILED_LOADS:
            self._abandon(place, why, exit_code)
        else:
            self._launch(place)

    def _kill(self, place: _LocalPlace) -> None:
        if place.child is not None:
            place.child.signal(signal.SIGKILL)
            place.child.process.wait()

    def _end(self, places: Sequence[_LocalPlace], *, alone_s: float = 0.0) -> None:
        end([place.child for place in places if place.child is not None], alone_s=alone_s)
        for place in places:
            place.child = None

    def _cores_each(self) -> float:
        return self.cores() / max(1, len(self._places))

    def cores(self) -> float:
        return float(len({core for place in self._places for core in place.cores}))

    def close(self) -> None:
        idle = [place for place in self._places if place.state == "idle"]
        for place in idle:
            self._send(place, Order(do="close"))
        self._end(idle, alone_s=GRACE_S)
        self._end(self._places)
        for place in self._places:
            if place.is_open():
                place.enter("gone", self.clock())


def _command_line(shared: Path, cores: Sequence[int], pipe: int) -> list[str]:
    """Return a command that sets its cores first: libraries start a thread per usable core."""
    bind = f"hasattr(os, 'sched_setaffinity') and os.sched_setaffinity(0, {list(cores)!r}); "
    return python_command("detector.batch.worker", pipe, shared, bind)
