"""The founding tools' table of stages, of a saved session: counts, sums and percentiles of every call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.session.reading import SavedSession
from detector.timeline import KINDS, STAGES, WORK
from detector.timeline.histogram import SAMPLE_FLOORS
from detector.timeline.stages import NMS, READ, WRITE

LAST = (NMS, WRITE)  # of a frame's life: the later one that there is counts


def durations_ms(columns: dict[str, NDArray[Any]], stage: str) -> NDArray[np.float64]:
    """Every recorded call of a stage, milliseconds, by start; from the columns of spans.npz."""
    names = columns["stage_names"].tolist()
    if stage not in names:
        return np.zeros(0)
    picked = (columns["kind"] == KINDS.index(WORK)) & (columns["stage"] == names.index(stage))
    found: NDArray[np.float64] = (columns["end_ns"][picked] - columns["start_ns"][picked]) / 1e6
    return found


def step_rows(session: SavedSession) -> list[dict[str, Any]]:
    """One row a stage, times in milliseconds. ``share``: of all stages' time; the shares add up to 1."""
    return step_rows_of(session.spans)


def step_rows_of(columns: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    found = {stage: durations_ms(columns, stage) for stage in STAGES}
    whole = sum(float(values.sum()) for values in found.values()) or 1.0
    return [_row(stage, values, whole) for stage, values in found.items() if len(values)]


def _row(stage: str, values: NDArray[np.float64], whole: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": stage,
        "total": float(values.sum()),
        "count": len(values),
        "avg": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
        "min": float(values.min()),
        "max": float(values.max()),
        "share": float(values.sum()) / whole,
    }
    return row | percentiles(values)


def percentiles(values: NDArray[np.float64]) -> dict[str, float | None]:
    """p50, p90, p99 by nearest rank, as the ledger's histograms take theirs; None of too few values."""
    return {
        f"p{percent}": float(np.percentile(values, percent, method="inverted_cdf")) if len(values) >= least else None
        for percent, least in SAMPLE_FLOORS.items()
    }


def frame_times_ms(columns: dict[str, NDArray[Any]], source: int = 0) -> NDArray[np.float64]:
    """From the start of each frame's read to the end of its last stage, milliseconds, by frame."""
    stages = columns["stage_names"].tolist()
    work = (columns["kind"] == KINDS.index(WORK)) & (columns["source"] == source)
    if READ not in stages:
        return np.zeros(0)
    read = work & (columns["stage"] == stages.index(READ))
    starts = dict(zip(columns["index"][read].tolist(), columns["start_ns"][read].tolist(), strict=True))
    ends: dict[int, int] = {}
    for name in LAST:
        if name in stages:
            picked = work & (columns["stage"] == stages.index(name))
            ends |= dict(zip(columns["index"][picked].tolist(), columns["end_ns"][picked].tolist(), strict=True))
    return np.array([(ends[frame] - starts[frame]) / 1e6 for frame in sorted(ends) if frame in starts])
