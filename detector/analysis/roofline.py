"""The roofline (Williams, Waterman, Patterson 2009) of a network on a machine whose peaks were measured.

A layer of intensity I (FLOPs a byte) can run at min(peak of its type, I x bandwidth). Below the ridge point memory
binds, above it the arithmetic. Small layers reach neither: what they cost is being started, and a roof says
nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch overhead"
LAUNCH_SHARE = 0.1  # of its roof below which a layer's time is not explained by the roof


def above_roof(layers: int) -> str:
    """Why so many layers may stand above what the machine is said to reach."""
    return f"layers above their roof: {layers} (peak under-measured, or data in a cache)"


@dataclass(frozen=True, slots=True)
class Peaks:
    """``gflops_s`` by precision; ``bandwidth_gbytes_s``."""

    gflops_s: Mapping[str, float]
    bandwidth_gbytes_s: float

    def ridge(self, precision: str) -> float | None:
        """FLOPs a byte at which arithmetic and memory are equally fast."""
        peak = self.gflops_s.get(precision)
        return None if peak is None else peak / self.bandwidth_gbytes_s


def placed(row: Mapping[str, Any], peaks: Peaks, launch_ms: float) -> dict[str, Any]:
    """A layer's place: ``gflops_s``, ``gbytes_s``, ``intensity``, ``utilisation`` of its roof, ``bound``, ``flag``.

    ``row``: ms, flops, bytes, precision. ``launch_ms``: what starting any layer costs here. A share above 1 is left
    as it is and flagged: then the peak was measured too low.
    """
    seconds = row["ms"] / 1e3
    rates = {
        "gflops_s": row["flops"] / seconds / 1e9 if seconds > 0 else None,
        "gbytes_s": row["bytes"] / seconds / 1e9 if seconds > 0 else None,
        "intensity": row["flops"] / row["bytes"] if row["bytes"] else None,
    }
    return {**rates, **_judged(row, peaks, launch_ms, rates)}


def _judged(
    row: Mapping[str, Any], peaks: Peaks, launch_ms: float, rates: Mapping[str, float | None]
) -> dict[str, Any]:
    peak = peaks.gflops_s.get(row["precision"])
    if not row["ms"] or (row["flops"] and peak is None):
        return {"utilisation": None, "bound": None, "flag": None if row["ms"] else "not measured"}
    by_compute = row["flops"] / (peak * 1e9) * 1e3 if peak and row["flops"] else 0.0
    by_memory = row["bytes"] / (peaks.bandwidth_gbytes_s * 1e9) * 1e3
    least_ms = max(by_compute, by_memory)
    share = least_ms / row["ms"]
    if share < LAUNCH_SHARE or row["ms"] <= 2 * launch_ms:
        bound = LAUNCH
    else:
        bound = COMPUTE if by_compute >= by_memory else MEMORY
    return {"utilisation": share, "bound": bound, "flag": "peak under-measured" if share > 1 else None}


def whole(rows: Sequence[Mapping[str, Any]], peaks: Peaks, forward_ms: float) -> dict[str, Any]:
    """The model on the roofline: sums of its layers over the time of a forward pass, per precision executed."""
    macs, flops = sum(row["macs"] for row in rows), sum(row["flops"] for row in rows)
    moved = sum(row["bytes"] for row in rows)
    least_ms = sum(_least_ms(row, peaks) for row in rows)
    arithmetic = [row for row in rows if row["flops"]]
    by_bound: dict[str, float] = {}
    for row in rows:
        if row.get("bound"):
            by_bound[row["bound"]] = by_bound.get(row["bound"], 0.0) + row["ms"]
    main = max(by_bound, key=lambda bound: by_bound[bound], default=None)
    return {
        "macs": macs,
        "flops": flops,
        "bytes": moved,
        "intensity": flops / moved if moved else None,
        "gflops_s": flops / forward_ms / 1e6 if forward_ms else None,
        "utilisation": least_ms / forward_ms if forward_ms else None,
        "bound": main,
        "ms_by_bound": by_bound,
        "ridge": {precision: peaks.ridge(precision) for precision in {row["precision"] for row in arithmetic}},
    }


def _least_ms(row: Mapping[str, Any], peaks: Peaks) -> float:
    peak = peaks.gflops_s.get(row["precision"])
    by_compute = row["flops"] / (peak * 1e9) if peak else 0.0
    return 1e3 * float(max(by_compute, row["bytes"] / (peaks.bandwidth_gbytes_s * 1e9)))
