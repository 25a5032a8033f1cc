"""Measures the memory of a live run per minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from detector.core.errors.machine import resident_bytes
from detector.core.session.document import LiveMemory, MemoryMinute

MB = 10**6  # bytes, as in the other memory figures
SECOND = 1_000_000_000
MINUTE = 60 * SECOND


@dataclass(slots=True)
class _Minute:
    number: int  # since the start of the run
    samples: int = 0
    total_mb: float = 0.0


class MemoryWatch:
    """Samples this process's memory. ``clock``: ns. ``resident`` returns bytes. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        resident: Callable[[], int | None] = resident_bytes,
    ) -> None:
        self._clock, self._resident = clock, resident
        self._started_ns = clock()
        self._lock = threading.Lock()
        self._minutes: list[_Minute] = []
        self._start_mb: float | None = None
        self._end_mb = self._peak_mb = 0.0

    def begin_day(self) -> None:
        with self._lock:
            self._minutes.clear()
            self._start_mb, self._peak_mb = None, 0.0

    def sample(self) -> None:
        size = self._resident()
        if size is None:
            return
        number, mb = (self._clock() - self._started_ns) // MINUTE, size / MB
        with self._lock:
            if not self._minutes or self._minutes[-1].number != number:
                self._minutes.append(_Minute(number))
            self._minutes[-1].samples += 1
            self._minutes[-1].total_mb += mb
            self._start_mb = mb if self._start_mb is None else self._start_mb
            self._end_mb, self._peak_mb = mb, max(self._peak_mb, mb)

    def figures(self) -> LiveMemory | None:
        with self._lock:
            if self._start_mb is None:
                return None
            return LiveMemory(
                start_mb=self._start_mb,
                end_mb=self._end_mb,
                peak_mb=self._peak_mb,
                minutes=[
                    MemoryMinute(one.number, round(one.total_mb / one.samples, 3))
                    for one in self._minutes
                ],
            )
