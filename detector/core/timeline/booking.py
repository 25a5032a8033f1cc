"""The CPU time of an engine's own threads, booked to the inference that caused it.

The kernel counts it for each thread; nobody says for which request a thread works. So the clocks of
all of the engine's threads are read where an inference begins and where one ends:

- A pool that one worker made (OpenMP makes one for each calling thread, and its threads keep the
  name of who made them) works for that worker's inference alone.
- What all others used since the last such moment was for the inferences under way, in equal parts.
- With none under way, threads still spin behind the last one: it is booked to that.

So the sum over all inferences is what the threads used, whatever the number of requests.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LINUX = sys.platform == "linux"
Tasks = Callable[[], Mapping[int, str]]
"""The engine's threads by the kernel's numbers, each with the name of the thread that made it; ""
where nobody knows. Another mapping where they are others."""


def cpu_ns_of(task: int) -> int | None:
    """CPU time of a thread of this process so far. None where it has ended, or nobody tells.

    The clock of another thread has the number that ``pthread_getcpuclockid`` makes (Linux,
    include/linux/posix-timers.h: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED). Unlike its schedstat it
    counts up to now while the thread runs.
    """
    if not LINUX:
        return None
    try:  # twice for each thread and inference; contextlib.suppress would double its cost
        return time.clock_gettime_ns(~task << 3 | 6)
    except (OSError, OverflowError):
        return None


@dataclass(slots=True)
class Inferences:
    """What one worker's inferences have been given so far, nanoseconds."""

    booked_ns: int = 0
    each_ns: int = 0  # of ``Booking._each_ns``, when the one under way began


@dataclass(slots=True)
class _Clock:
    """Of one of the engine's threads. ``maker``: the worker that made it; "" where unknown."""

    task: int
    maker: str
    seen_ns: int = 0


class Booking:
    """Of one run of the loop. ``worker``: the name of the thread that calls the engine."""

    def __init__(self, tasks: Tasks, cpu_ns: Callable[[int], int | None] = cpu_ns_of) -> None:
        self._tasks, self._cpu_ns = tasks, cpu_ns
        self._lock = threading.Lock()
        self._listed: Mapping[int, str] = {}  # whose clocks these are
        self._clocks: list[_Clock] = []
        self._workers: dict[str, Inferences] = {}
        self._inside = 0
        self._rest_ns = 0  # which did not divide, for the next moment
        self._each_ns = 0  # what an inference was given that has been under way from the first on
        self._last = ""  # the worker whose inference ended last
        self.begun = self.told = False  # told: whether any of these clocks can be read

    def begin(self) -> None:
        """Before the first inference: loading and warming up are nobody's."""
        with self._lock:
            if not self.begun:
                self.begun = True
                self._book()

    def enter(self, worker: str) -> int:
        """An inference begins. Returns what those that this worker ran before have been given."""
        with self._lock:
            self._book()
            found = self._of(worker)
            found.each_ns = self._each_ns
            self._inside += 1
            return found.booked_ns

    def leave(self, worker: str) -> int:
        """It ends. Returns what this worker's have been given, with this one."""
        with self._lock:
            self._book()
            found = self._workers[worker]
            found.booked_ns += self._each_ns - found.each_ns
            self._inside -= 1
            self._last = worker
            return found.booked_ns

    def settle(self, worker: str) -> int:
        """``enter`` without an inference: for the end of a run."""
        with self._lock:
            self._book()
            return self._of(worker).booked_ns

    def _of(self, worker: str) -> Inferences:
        found = self._workers.get(worker)
        if found is None:
            found = self._workers[worker] = Inferences()
        return found

    def _book(self) -> None:
        """Twice an inference, so each of these lines counts: 0.4 us are the kernel's, a clock."""
        tasks = self._tasks()
        if tasks is not self._listed:
            self._list(tasks)
        cpu_ns, workers, shared = self._cpu_ns, self._workers, self._rest_ns
        for clock in self._clocks:
            now = cpu_ns(clock.task)
            if now is None:
                continue
            used = now - clock.seen_ns
            clock.seen_ns = now
            if used < 0:  # another thread has the number now
                continue
            if clock.maker in workers:
                workers[clock.maker].booked_ns += used
            else:
                shared += used
        if self._inside:
            each, self._rest_ns = divmod(shared, self._inside)
            self._each_ns += each
        elif self._last:
            workers[self._last].booked_ns += shared
            self._rest_ns = 0

    def _list(self, tasks: Mapping[int, str]) -> None:
        """Other threads than before, or other makers."""
        seen = {clock.task: clock.seen_ns for clock in self._clocks}
        self._listed = tasks
        self._clocks = [_Clock(task, maker, seen.get(task, 0)) for task, maker in tasks.items()]
        self.told |= any(self._cpu_ns(task) is not None for task in tasks)
