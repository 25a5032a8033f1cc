"""What a pool of workers promises. The job (job.py) knows no more of it: neither processes, nor
machines.

A worker loads the model once and then takes one item after the other. It is handed an item's name
and path and gives back the item's record: never frames, never detections. Those it writes itself.
A task may be one step of a long item (item.py); a pool hands it through like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from detector.batch.documents import ItemRecord, WorkerReport, WorkerState
from detector.batch.item import Task
from detector.batch.settings import LoadedFacts


@dataclass(frozen=True, slots=True)
class Finished:
    """``wall_s``: from handing the item over to having its record."""

    task: Task
    worker: int
    record: ItemRecord
    wall_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """``lost``: the worker did not answer for it (a crash, a hang, no memory), so that another try
    may go well. Otherwise the item itself is at fault, or the place of its results."""

    task: Task
    worker: int
    error: str
    exit_code: int
    lost: bool
    wall_s: float


@dataclass(frozen=True, slots=True)
class Gone:
    """A place in the pool is given up: its workers do not even load."""

    worker: int
    error: str
    exit_code: int


Event = Finished | Failed | Gone


class Pool(Protocol):
    """A pool. One thread calls its methods."""

    def load_first(
        self, config: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
    ) -> LoadedFacts:
        """Loads the model in one worker, and waits for that. ``resolves``: the configuration may
        say ``auto``. Raises what loading raises, and Stopped where a signal ends the wait."""

    def start(self, config: dict[str, dict[str, Any]], digest: str, most: int) -> None:
        """Starts the other workers, ``most`` in all: there is no work for more. The first one is
        kept where it was loaded with these very settings."""

    def has_room(self) -> bool:
        """Whether an item can be handed over now. There may be less room than there are places:
        workers that load have none."""

    def submit(self, task: Task) -> None:
        """Hands an item to a worker. Only where there is room."""

    def wait(self, seconds: float) -> list[Event]:
        """What happened, or nothing after so many seconds."""

    def states(self) -> list[WorkerState]: ...

    def reports(self) -> list[WorkerReport]: ...

    def is_alive(self) -> bool:
        """Whether any place is left."""

    def cores(self) -> float:
        """Cores that the workers hold together."""

    def close(self) -> None:
        """Lets all workers go. What they still work on is dropped, and nothing of it stays."""
