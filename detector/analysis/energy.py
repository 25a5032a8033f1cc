"""Joules over time, as meters that count up told them: what a stretch of it took, by itself and beyond idling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

IN_ALL = (
    "package",
    "dram",
    "gpu",
)  # what a frame's joules are the sum of; a core is part of its package
KEPT = 1000  # samples of a series; of a longer one neighbours are put together, so that sums stay


@dataclass(frozen=True, slots=True)
class Metered:
    """``times_ns`` [N] of the spans' clock, ``joules`` tag -> [N] float64 since the first reading, whose wall-clock
    time is ``at`` (seconds since 1970)."""

    at: float
    times_ns: NDArray[np.int64]
    joules: Mapping[str, NDArray[np.float64]]

    @property
    def seconds(self) -> float:
        return float(self.times_ns[-1] - self.times_ns[0]) / 1e9

    def between(self, start_ns: int, end_ns: int) -> dict[str, float]:
        """Joules by tag of a stretch; between two readings power is taken as even."""
        edges = np.array([start_ns, end_ns])
        return {
            tag: float(np.diff(np.interp(edges, self.times_ns, values))[0])
            for tag, values in self.joules.items()
        }

    def whole(self) -> dict[str, float]:
        return {tag: float(values[-1]) for tag, values in self.joules.items()}


def net(joules: Mapping[str, float], seconds: float, idle: Metered) -> dict[str, float]:
    """Joules beyond what the machine uses in as many seconds of doing nothing, by tag."""
    watts = {tag: used / idle.seconds for tag, used in idle.whole().items()}
    return {tag: max(0.0, used - watts.get(tag, 0.0) * seconds) for tag, used in joules.items()}


def in_all(joules: Mapping[str, float]) -> float:
    return sum(joules.get(tag, 0.0) for tag in IN_ALL)


def row(
    metered: Metered,
    tag: str,
    start_ns: int,
    end_ns: int,
    joules: Mapping[str, float],
    frames: int | None,
) -> dict[str, Any]:
    """One line of energy.csv; ``joules_per_frame`` null where nothing was written, or ``frames`` is not known."""
    return {
        "timestamp": metered.at + (start_ns - int(metered.times_ns[0])) / 1e9,
        "tag": tag,
        "duration": (end_ns - start_ns) / 1e9,
        **joules,
        "joules_per_frame": in_all(joules) / frames if frames else None,
    }


def samples(
    metered: Metered, tag: str, written_ns: NDArray[np.int64] | None = None
) -> list[dict[str, Any]]:
    """Every stretch between two readings as a line, idle power included; together they are the whole.
    ``written_ns`` [F]: when each frame was written."""
    step = -(-max(1, len(metered.times_ns) - 1) // KEPT)
    edges = metered.times_ns[::step].tolist()
    if edges[-1] != metered.times_ns[-1]:
        edges.append(int(metered.times_ns[-1]))
    done = (
        np.zeros(len(edges), int)
        if written_ns is None
        else np.searchsorted(np.sort(written_ns), edges, "right")
    )
    return [
        row(metered, tag, start, end, metered.between(start, end), int(done[at + 1] - done[at]))
        for at, (start, end) in enumerate(pairwise(edges))
    ]
