"""Measures the load of all cores, and the share of our CPU time that goes into decoding."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from detector.core.errors.machine import usable_cores
from detector.core.timeline.native import machine_busy_ns

SECOND = 1_000_000_000  # ns


@dataclass(frozen=True, slots=True)
class LoadShares:
    """Shares, 0 to 1, over the last second. ``busy``: the share of all cores' time that was used.
    ``decoding``: the share of our own CPU time that went into decoding."""

    busy: float = 0.0
    decoding: float = 0.0


class CpuLoad:
    """Measures ``LoadShares``, for all cameras together. Thread-safe. ``cpu_clock``: our CPU ns."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu_clock: Callable[[], int] = time.process_time_ns,
        machine_clock: Callable[[], int | None] = machine_busy_ns,
        cores: int | None = None,
    ) -> None:
        self._clock, self._cpu_clock, self._machine_clock = clock, cpu_clock, machine_clock
        self._cores = cores or usable_cores()
        self._lock = threading.Lock()
        self._decoding_ns = 0
        self._before: tuple[int, int, int | None, int] | None = None
        self._shares = LoadShares()

    def add(self, cpu_ns: int) -> None:
        with self._lock:
            self._decoding_ns += cpu_ns

    def measure(self) -> LoadShares:
        """Return the load, updated at most once a second; zeros at the first call."""
        with self._lock:
            now = self._clock()
            if self._before is None or now - self._before[0] >= SECOND:
                self._measure(now)
            return self._shares

    def _measure(self, now: int) -> None:
        before = self._before
        self._before = (now, self._cpu_clock(), self._machine_clock(), self._decoding_ns)
        if before is None:
            return
        passed, own = now - before[0], self._before[1] - before[1]
        used = own
        if self._before[2] is not None and before[2] is not None:
            # The system counts in ticks of 10 ms, so it may report less than we used.
            used = max(own, self._before[2] - before[2])
        self._shares = LoadShares(
            busy=min(1.0, used / passed / self._cores),
            decoding=min(1.0, (self._before[3] - before[3]) / own) if own else 0.0,
        )
