"""How full the loop's queues were over time, from the spans of its stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detector.analysis.activities import ROWS_OF_A_FRAME, Activity, LoopShape
from detector.timeline.stages import HEAD, INFER, PREPROCESS, READ

FILLED = "filled batches"  # preprocessed, not yet in the engine
RESULTS = "results"  # out of the engine, not yet decoded
IN_FLIGHT = "frames in flight"  # read, not yet written

Steps = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(times in nanoseconds, ascending; the depth from each of them on)."""


def depths(activities: Sequence[Activity], shape: LoopShape) -> dict[str, Steps]:
    """Each queue's depth as steps. A run in one plain loop has frames in flight only."""
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    frames = 1 + max((one.number for one in activities if one.stage == PREPROCESS), default=-1)
    ended: dict[int, int] = {}
    for one in activities:
        row = one.number % shape.batch
        if one.stage == READ and one.number < frames:
            changes[IN_FLIGHT].append((one.end_ns, 1))
        elif one.stage == PREPROCESS and (row == shape.batch - 1 or one.number == frames - 1):
            changes[FILLED].append((one.end_ns, 1))
        elif one.stage == INFER:
            changes[FILLED].append((one.start_ns, -1))
            changes[RESULTS].append((one.end_ns, 1))
        elif one.stage == HEAD and row == 0:
            changes[RESULTS].append((one.start_ns, -1))
        if one.stage in ROWS_OF_A_FRAME:
            ended[one.number] = max(ended.get(one.number, 0), one.end_ns)
    changes[IN_FLIGHT] += [(when, -1) for when in ended.values()]
    names = (IN_FLIGHT,) if shape.sync else (FILLED, RESULTS, IN_FLIGHT)
    return {name: _steps(changes[name]) for name in names}


def _steps(changes: list[tuple[int, int]]) -> Steps:
    ordered = np.array(sorted(changes, key=lambda change: (change[0], -change[1])), np.int64).reshape(-1, 2)
    return ordered[:, 0], np.cumsum(ordered[:, 1])


def mean_depth(steps: Steps) -> float:
    """Averaged over time."""
    times, levels = steps
    if len(times) < 2 or times[-1] == times[0]:
        return 0.0
    return float(np.sum(levels[:-1] * np.diff(times)) / (times[-1] - times[0]))
