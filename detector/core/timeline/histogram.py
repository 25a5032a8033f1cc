"""A streaming histogram: percentiles of any number of samples, with a bounded relative error."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# The fewest samples for a percentile. A high percentile of fewer samples would be the maximum.
SAMPLE_FLOORS = {50: 5, 90: 20, 99: 200}


class Histogram:
    """Counts durations in geometric buckets: any quantile has a relative error within ``error``.

    The scheme of DDSketch (Masson, Rim, Lee, VLDB 2019), sections 2.1 and 2.2: bucket i holds
    (g^(i-1), g^i] with g = (1 + error) / (1 - error), and is reported as 2 g^i / (g + 1). Values
    are integers (nanoseconds), 0 included.
    """

    __slots__ = ("_counts", "_gamma", "_inverse_log", "count", "maximum", "minimum")

    def __init__(self, error: float = 0.001) -> None:
        self._gamma = (1 + error) / (1 - error)
        self._inverse_log = 1 / math.log(self._gamma)
        self._counts: dict[int, int] = {}
        self.count = 0
        self.minimum = 0
        self.maximum = 0

    def add_many(self, values: array[int] | NDArray[np.int64]) -> None:
        if not len(values):
            return
        durations = np.asarray(values, np.int64)
        buckets = np.where(
            durations > 0, np.ceil(np.log(np.maximum(durations, 1)) * self._inverse_log), -1
        )
        for bucket, count in zip(*np.unique(buckets, return_counts=True), strict=True):
            self._counts[int(bucket)] = self._counts.get(int(bucket), 0) + int(count)
        self.minimum = (
            min(self.minimum, int(durations.min())) if self.count else int(durations.min())
        )
        self.maximum = max(self.maximum, int(durations.max()))
        self.count += len(durations)

    def merge(self, other: Histogram) -> None:
        if not other.count:
            return
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.minimum = min(self.minimum, other.minimum) if self.count else other.minimum
        self.maximum = max(self.maximum, other.maximum)
        self.count += other.count

    def quantile(self, q: float) -> float | None:
        """Return the value of rank ceil(q * count), within the error; None without samples."""
        rank = max(1, math.ceil(q * self.count))
        cumulative = 0
        for value, count in self.counts():
            cumulative += count
            if cumulative >= rank:
                return value
        return None

    def counts(self) -> Iterator[tuple[float, int]]:
        """Yield values, within the relative error, and their counts; the smallest first."""
        for bucket in sorted(self._counts):
            estimate = 0.0 if bucket < 0 else 2 * self._gamma**bucket / (self._gamma + 1)
            yield float(min(max(estimate, self.minimum), self.maximum)), self._counts[bucket]

    def percentile(self, p: int) -> float | None:
        """Like ``quantile(p / 100)``, but None with fewer than ``SAMPLE_FLOORS[p]`` samples."""
        return self.quantile(p / 100) if self.count >= SAMPLE_FLOORS[p] else None
