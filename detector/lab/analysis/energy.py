"""Compute energy over time from cumulative counters, with and without the idle power."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from detector.lab.session.passes import EnergyRow

SUMMED = ("package", "dram", "gpu")  # counters that add up to the total; "package" includes "core"
MOST_SAMPLES = 1000  # a longer series is shortened by adding up adjacent samples


@dataclass(frozen=True, slots=True)
class Metered:
    """Readings of all energy counters. ``times_ns`` [N]: when each was read, on the spans' clock.
    ``joules``: tag -> energy [N] since the first reading. ``at``: its time (s since 1970)."""

    at: float
    times_ns: NDArray[np.int64]
    joules: Mapping[str, NDArray[np.float64]]

    @property
    def seconds(self) -> float:
        return float(self.times_ns[-1] - self.times_ns[0]) / 1e9

    def between(self, start_ns: int, end_ns: int) -> dict[str, float]:
        """Return the joules by tag in an interval, assuming constant power between readings."""
        edges = np.array([start_ns, end_ns])
        return {
            tag: float(np.diff(np.interp(edges, self.times_ns, values))[0])
            for tag, values in self.joules.items()
        }

    def total(self) -> dict[str, float]:
        return {tag: float(values[-1]) for tag, values in self.joules.items()}


def subtract_idle(joules: Mapping[str, float], seconds: float, idle: Metered) -> dict[str, float]:
    """Subtract the joules that the idle computer uses in the same time. No result is below 0."""
    watts = {tag: used / idle.seconds for tag, used in idle.total().items()}
    return {tag: max(0.0, used - watts.get(tag, 0.0) * seconds) for tag, used in joules.items()}


def sum_joules(joules: Mapping[str, float]) -> float:
    return sum(joules.get(tag, 0.0) for tag in SUMMED)


def energy_row(
    metered: Metered,
    tag: str,
    start_ns: int,
    end_ns: int,
    joules: Mapping[str, float],
    frames: int | None,
) -> EnergyRow:
    return EnergyRow(
        timestamp=metered.at + (start_ns - int(metered.times_ns[0])) / 1e9,
        tag=tag,
        duration=(end_ns - start_ns) / 1e9,
        **joules,
        joules_per_frame=sum_joules(joules) / frames if frames else None,
    )


def energy_samples(
    metered: Metered, tag: str, done_ns: NDArray[np.int64] | None = None
) -> list[EnergyRow]:
    """Return the energy between readings, with idle power. ``done_ns`` [F]: each frame's end."""
    step = -(-max(1, len(metered.times_ns) - 1) // MOST_SAMPLES)
    edges = metered.times_ns[::step].tolist()
    if edges[-1] != metered.times_ns[-1]:
        edges.append(int(metered.times_ns[-1]))
    done = (
        np.zeros(len(edges), int)
        if done_ns is None
        else np.searchsorted(np.sort(done_ns), edges, "right")
    )
    return [
        energy_row(
            metered, tag, start, end, metered.between(start, end), int(done[at + 1] - done[at])
        )
        for at, (start, end) in enumerate(pairwise(edges))
    ]
