"""Measures the memory of a live run per minute, and its growth.

The growth is the slope of a least-squares line through the minutes, with its 95% confidence
interval. The first ten minutes are excluded, because pools, caches and connections fill then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import fsum, inf, sqrt

from detector.core.errors.machine import resident_bytes
from detector.core.session.document import LiveMemory, MemoryMinute

MB = 10**6  # bytes, as in the other memory figures
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
SETTLING_MINUTES = 10  # excluded from the start of the run
FEWEST_MINUTES = 10  # with fewer, the confidence interval would be too wide


@dataclass(slots=True)
class _Minute:
    number: int  # since the start of the run
    samples: int = 0
    total_mb: float = 0.0

    @property
    def mean_mb(self) -> float:
        return self.total_mb / self.samples


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
            settled = [one for one in self._minutes if one.number >= SETTLING_MINUTES]
            slope = low = high = reason = None
            if len(settled) < FEWEST_MINUTES:
                reason = (
                    f"it needs {FEWEST_MINUTES} minutes after the run's first {SETTLING_MINUTES}"
                )
            else:
                hours = [one.number / 60 for one in settled]
                slope, half = fit_slope(hours, [one.mean_mb for one in settled])
                low, high = slope - half, slope + half
            return LiveMemory(
                start_mb=self._start_mb,
                end_mb=self._end_mb,
                peak_mb=self._peak_mb,
                slope_mb_per_hour=slope,
                slope_low=low,
                slope_high=high,
                slope_reason=reason,
                minutes=[MemoryMinute(one.number, round(one.mean_mb, 3)) for one in self._minutes],
            )


def fit_slope(xs: list[float], ys: list[float]) -> tuple[float, float]:
    """Return the least-squares slope and half its 95% interval (Student's t; infinite for two
    points). ``xs`` [N] must not all be equal."""
    count = len(xs)
    mean_x, mean_y = fsum(xs) / count, fsum(ys) / count
    spread = fsum((x - mean_x) ** 2 for x in xs)
    slope = fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    if count < 3:
        return slope, inf
    rest = fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return slope, _t975(count - 2) * sqrt(rest / (count - 2) / spread)


def _t975(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t (Abramowitz and Stegun, 26.7.5), to 0.1% from 6
    degrees of freedom."""
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
