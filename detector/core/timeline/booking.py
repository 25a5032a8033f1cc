"""Book the CPU time of an engine's own threads to the inferences that caused it.

The kernel counts CPU time per thread, but does not know which request a thread works for. So we
read the clocks of all of the engine's threads whenever an inference begins or ends:

- OpenMP makes a pool for each worker that calls it, and the pool's threads keep that worker's name.
  Their time is booked to that worker's inferences alone.
- Time that other threads used since the last reading is split equally between the inferences in
  flight.
- Threads spin for a while after an inference. If no inference is in flight, this time is booked to
  the inference that ended last.

So the sum over all inferences equals the threads' CPU time, for any number of requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

Tasks = Callable[[], Mapping[int, str]]
"""Returns the engine's threads: kernel thread id -> name of the creating thread, "" if unknown.
The mapping is a new object whenever the threads have changed."""


def clock_of(task: int) -> int:
    """Return the number of a thread's CPU clock, computed as in ``pthread_getcpuclockid`` (Linux,
    include/linux/posix-timers.h). This clock is always up to date, unlike the file schedstat."""
    return ~task << 3 | 6


@dataclass(slots=True)
class _ThreadClock:
    """The CPU clock of an engine's thread. ``owner``: the worker that created the thread."""

    number: int
    owner: EngineCaller | None
    last_ns: int = 0


class Booking:
    """Books the engine's CPU time in one run of the loop. ``read`` takes a clock's number and
    returns the clock's nanoseconds. ``read`` raises OSError or OverflowError if the thread has
    ended or the clock cannot be read."""

    def __init__(self, tasks: Tasks, read: Callable[[int], int] = time.clock_gettime_ns) -> None:
        self._tasks, self._read = tasks, read
        self._lock = threading.Lock()
        self._listed: Mapping[int, str] | None = None  # threads whose clocks are read
        self._clocks: list[_ThreadClock] = []
        self._workers: dict[str, EngineCaller] = {}
        self._inside = 0  # inferences in flight
        self._rest_ns = 0  # remainder of the division, carried to the next reading
        self._each_ns = 0  # share of each inference in flight, summed over all readings
        self._last: EngineCaller | None = None  # the worker whose inference ended last
        self.readable = False  # whether any of these clocks can be read

    def worker(self, name: str) -> EngineCaller:
        """Return the ``EngineCaller`` of worker ``name``, a thread that is to call the engine."""
        with self._lock:
            if not self._workers:
                self._book()  # loading and warm-up belong to no call
            self._listed = None  # list the clocks again: this worker may have created threads
            return self._workers.setdefault(name, EngineCaller(self))

    def _book(self) -> None:
        """Book the time since the last call. This takes 0.4 us per clock, twice per inference."""
        tasks = self._tasks()
        if tasks is not self._listed:
            self._list(tasks)
        read, shared = self._read, self._rest_ns
        for clock in self._clocks:
            try:  # contextlib.suppress would double this time
                now = read(clock.number)
            except (OSError, OverflowError):
                continue
            used = now - clock.last_ns
            clock.last_ns = now
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
        """Rebuild the list of clocks after the threads, or our workers, have changed."""
        last_ns = {clock.number: clock.last_ns for clock in self._clocks}
        self._listed = tasks
        self._clocks = [
            _ThreadClock(
                number := clock_of(task), self._workers.get(creator), last_ns.get(number, 0)
            )
            for task, creator in tasks.items()
        ]
        self.readable = self.readable or any(self._can_read(clock.number) for clock in self._clocks)

    def _can_read(self, number: int) -> bool:
        with suppress(OSError, OverflowError):
            self._read(number)
            return True
        return False


class EngineCaller:
    """A thread that calls the engine. ``booked_ns``: CPU time booked to its inferences so far."""

    __slots__ = ("_booking", "_each_ns", "booked_ns")

    def __init__(self, booking: Booking) -> None:
        self._booking = booking
        self.booked_ns = 0
        self._each_ns = 0  # ``Booking._each_ns`` at the start of the inference in flight

    @property
    def readable(self) -> bool:
        return self._booking.readable

    def enter(self) -> int:
        """Begin an inference. Return the time booked to earlier inferences."""
        booking = self._booking
        with booking._lock:
            booking._book()
            self._each_ns = booking._each_ns
            booking._inside += 1
            return self.booked_ns

    def leave(self) -> int:
        """End the inference. Return the time booked to all of this thread's inferences so far."""
        booking = self._booking
        with booking._lock:
            booking._book()
            self.booked_ns += booking._each_ns - self._each_ns
            booking._inside -= 1
            booking._last = self
            return self.booked_ns

    def settle(self) -> int:
        """Book the remaining time at the end of a run. Return ``booked_ns``."""
        with self._booking._lock:
            self._booking._book()
            return self.booked_ns
