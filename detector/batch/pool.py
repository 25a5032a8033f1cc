"""The contract of a pool of workers, and the state that all pools share.

A worker loads the model once and then processes one item after the other. It gets the name and path
of an item, writes the item's outputs, and returns its record.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from detector.batch.documents import ItemRecord, WorkerReport, WorkerState
from detector.batch.item import Task
from detector.batch.settings import LoadedFacts
from detector.core.errors import EXIT_ENGINE

TICK_S = 0.2
MOST_FAILED_LOADS = 3  # after this many failed loads in a row, a place in the pool stays empty


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished task. ``wall_s``: time between its submission and its record."""

    task: Task
    worker: int
    record: ItemRecord
    wall_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed task. ``lost``: the worker crashed, hung or must be replaced, so another try may
    succeed."""

    task: Task
    worker: int
    error: str
    exit_code: int
    lost: bool
    wall_s: float


@dataclass(frozen=True, slots=True)
class Gone:
    """A place in the pool stays empty: no worker can load the model there, or Ray is lost."""

    worker: int
    error: str
    exit_code: int


Event = Finished | Failed | Gone


class Pool(Protocol):
    def load_first(
        self, config: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
    ) -> LoadedFacts:
        """Load the model in one worker, and wait for it. ``resolves``: ``config`` may contain
        ``auto``. Raises the errors of loading, and Stopped if a signal ends the wait."""

    def start(self, config: dict[str, dict[str, Any]], digest: str, most: int) -> None:
        """Start more workers, ``most`` in all. The first worker stays if it has these settings."""

    def has_room(self) -> bool:
        """Return whether a worker is free. A worker that is still loading is not."""

    def submit(self, task: Task) -> None:
        """Give a task to a free worker. Call it only after ``has_room`` returned True."""

    def wait(self, seconds: float) -> list[Event]:
        """Wait for an event, or for room if the pool is full, up to ``seconds``. Return events."""

    def states(self) -> list[WorkerState]: ...

    def reports(self) -> list[WorkerReport]: ...

    def is_alive(self) -> bool:
        """Return whether any place still has, or will get, a worker."""

    def cores(self) -> float:
        """Return the number of cores that all workers use together."""

    def close(self) -> None:
        """End all workers. Their unfinished work is removed."""


@dataclass(slots=True, kw_only=True)
class Place:
    """One place in a pool: its present worker, and the sums over all workers that it has had.
    ``since``: start of ``state``. ``spent``: state -> seconds."""

    number: int
    state: str = "waiting"  # "waiting" (for a node), "loading", "idle", "working" or "gone"
    since: float
    task: Task | None = None
    frames: int = 0  # frames of the present task
    facts: LoadedFacts | None = None
    failed_loads: int = 0  # failed loads in a row
    starts: int = 0  # number of processes started
    items: int = 0
    done_frames: int = 0
    spent: dict[str, float] = field(default_factory=dict)

    def enter(self, state: str, now: float) -> None:
        """Change the state, and add the seconds of the previous state to ``spent``."""
        self.spent[self.state] = self.seconds(self.state, now)
        self.state, self.since = state, now

    def seconds(self, state: str, now: float) -> float:
        here = now - self.since if self.state == state else 0.0
        return self.spent.get(state, 0.0) + here

    def is_open(self) -> bool:
        """Return whether the place has, or will get, a worker."""
        return self.state != "gone"

    def is_free(self) -> bool:
        return self.state == "idle"


AnyPlace = TypeVar("AnyPlace", bound=Place)


@dataclass(slots=True, kw_only=True)
class Places(Generic[AnyPlace]):
    clock: Callable[[], float] = time.monotonic
    _places: list[AnyPlace] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)

    @abstractmethod
    def _look(self, seconds: float) -> None:
        """Read workers' messages for up to ``seconds``, and check on silent workers."""

    @abstractmethod
    def _hand(self, place: AnyPlace, task: Task) -> None:
        """Send the task to the worker of this place."""

    @abstractmethod
    def _cores_each(self) -> float: ...

    def has_room(self) -> bool:
        return any(place.is_free() for place in self._places)

    def submit(self, task: Task) -> None:
        place = next(place for place in self._places if place.is_free())
        place.task, place.frames = task, 0
        place.enter("working", self.clock())
        self._hand(place, task)

    def wait(self, seconds: float) -> list[Event]:
        end, had_room = self.clock() + seconds, self.has_room()
        while not self._events and (had_room or not self.has_room()):
            left = end - self.clock()
            if left <= 0 or not self.is_alive():
                break
            self._look(min(left, TICK_S))
        events, self._events = self._events, []
        return events

    def _finish_task(self, place: AnyPlace, record: ItemRecord) -> None:
        task, place.task = place.task, None
        if task is not None:
            place.items += 1
            place.done_frames += record.frames
            wall_s = self.clock() - place.since
            self._events.append(Finished(task, place.number, record, wall_s))

    def _fail_task(
        self, place: AnyPlace, why: str, exit_code: int = EXIT_ENGINE, *, lost: bool = True
    ) -> bool:
        """Report the place's task as failed. Return whether it had one."""
        task, place.task = place.task, None
        if task is not None:
            wall_s = self.clock() - place.since
            self._events.append(Failed(task, place.number, why, exit_code, lost, wall_s))
        return task is not None

    def _abandon(self, place: AnyPlace, why: str, exit_code: int) -> None:
        place.enter("gone", self.clock())
        self._events.append(Gone(place.number, why, exit_code))

    def is_alive(self) -> bool:
        return any(place.is_open() for place in self._places)

    def states(self) -> list[WorkerState]:
        return [self._state(place) for place in self._places]

    def _state(self, place: AnyPlace) -> WorkerState:
        report = self._report(place)
        frames = place.frames if place.task is not None else 0
        all_frames = place.done_frames + frames
        return WorkerState(
            worker=place.number,
            state=place.state,
            item=None if place.task is None else place.task.label,
            frames=frames,
            done=place.items,
            fps=all_frames / report.busy_s if all_frames and report.busy_s > 0 else None,
            busy_share=report.utilisation,
        )

    def reports(self) -> list[WorkerReport]:
        now = self.clock()
        there = [place for place in self._places if place.starts or place.seconds("loading", now)]
        return [self._report(place) for place in there]

    def _report(self, place: AnyPlace) -> WorkerReport:
        now = self.clock()
        return WorkerReport(
            worker=place.number,
            starts=place.starts,
            items=place.items,
            frames=place.done_frames,
            load_s=place.seconds("loading", now),
            busy_s=place.seconds("working", now),
            idle_s=place.seconds("idle", now),
            cores=self._cores_each(),
        )
