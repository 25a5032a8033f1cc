"""The CPU time of an engine's own threads, booked to the inference that caused it.

The kernel counts it per thread, but does not know which request a thread works for. So we read the
clocks of all of the engine's threads whenever an inference begins or ends:

- A pool that one worker made (OpenMP makes one for each calling thread, and its threads keep the
  name of their creator) works for that worker's inference alone.
- Time that other threads used since the last reading is split equally between the inferences in
  flight.
- With none in flight, threads still spin after the last one, which their time is booked to.

So the sum over all inferences is what the threads used, whatever the number of requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

Tasks = Callable[[], Mapping[int, str]]
"""The engine's threads by the kernel's numbers, each with the name of its creator; "" if unknown.
A changed set of threads is another mapping."""


def clock_of(task: int) -> int:
    """Return the number of a thread's CPU clock, as ``pthread_getcpuclockid`` makes it (Linux,
    include/linux/posix-timers.h). Unlike schedstat it counts up to now."""
    return ~task << 3 | 6


@dataclass(slots=True)
class _ThreadClock:
    """The clock of an engine's thread. ``owner``: the worker that created it; None if unknown."""

    number: int
    owner: EngineCaller | None
    seen_ns: int = 0


class Booking:
    """The booking of one loop run. ``read``: returns a clock, by its number, in nanoseconds;
    OSError or OverflowError if the thread has ended or the clock is not readable."""

    def __init__(self, tasks: Tasks, read: Callable[[int], int] = time.clock_gettime_ns) -> None:
        self._tasks, self._read = tasks, read
        self._lock = threading.Lock()
        self._listed: Mapping[int, str] | None = None  # threads whose clocks are read
        self._clocks: list[_ThreadClock] = []
        self._workers: dict[str, EngineCaller] = {}
        self._inside = 0  # inferences in flight
        self._rest_ns = 0  # remainder of the division, carried to the next reading
        self._each_ns = 0  # sum of the shares of an inference in flight since the start
        self._last: EngineCaller | None = None  # the worker whose inference ended last
        self.told = False  # whether any of these clocks can be read

    def worker(self, name: str) -> EngineCaller:
        """Return the thread of that name, which is about to call the engine."""
        with self._lock:
            if not self._workers:
                self._book()  # loading and warm-up belong to no call
            self._listed = None  # this thread may have created some of the listed ones
            return self._workers.setdefault(name, EngineCaller(self))

    def _book(self) -> None:
        """Book the time since the last call. Must be fast, twice per inference: 0.4 us a clock."""
        tasks = self._tasks()
        if tasks is not self._listed:
            self._list(tasks)
        read, shared = self._read, self._rest_ns
        for clock in self._clocks:
            try:  # contextlib.suppress would double the cost of a clock
                now = read(clock.number)
            except (OSError, OverflowError):
                continue
            used = now - clock.seen_ns
            clock.seen_ns = now
            if used < 0:  # the number now belongs to another thread
                continue
            if clock.owner is None:
                shared += used
            else:
                clock.owner.booked_ns += used
        if self._inside == 1:
            self._each_ns += shared
            self._rest_ns = 0
        elif self._inside:
            each, self._rest_ns = divmod(shared, self._inside)
            self._each_ns += each
        elif self._last is not None:
            self._last.booked_ns += shared
            self._rest_ns = 0

    def _list(self, tasks: Mapping[int, str]) -> None:
        """Replace the list of threads, or of their creators."""
        seen = {clock.number: clock.seen_ns for clock in self._clocks}
        self._listed = tasks
        self._clocks = [
            _ThreadClock(number := clock_of(task), self._workers.get(maker), seen.get(number, 0))
            for task, maker in tasks.items()
        ]
        self.told = self.told or any(self._tells(clock.number) for clock in self._clocks)

    def _tells(self, number: int) -> bool:
        with suppress(OSError, OverflowError):
            self._read(number)
            return True
        return False


class EngineCaller:
    """A thread that calls the engine. ``booked_ns``: what its inferences have been given so far."""

    __slots__ = ("_booking", "_each_ns", "booked_ns")

    def __init__(self, booking: Booking) -> None:
        self._booking = booking
        self.booked_ns = 0
        self._each_ns = 0  # ``Booking._each_ns`` at the start of the inference in flight

    @property
    def told(self) -> bool:
        return self._booking.told

    def enter(self) -> int:
        """Begin an inference. Return the time booked to earlier ones."""
        booking = self._booking
        with booking._lock:
            booking._book()
            self._each_ns = booking._each_ns
            booking._inside += 1
            return self.booked_ns

    def leave(self) -> int:
        """End the inference. Return the time booked to all, including this one."""
        booking = self._booking
        with booking._lock:
            booking._book()
            self.booked_ns += booking._each_ns - self._each_ns
            booking._inside -= 1
            booking._last = self
            return self.booked_ns

    def settle(self) -> int:
        """Book the time at the end of a run, without beginning an inference."""
        with self._booking._lock:
            self._booking._book()
            return self.booked_ns
