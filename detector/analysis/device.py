"""A GPU's time: when it was busy, and what it was idle for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Interval = tuple[float, float]
"""Begin and end, in ms."""

LAUNCHING, UNASKED = "the host was preparing or launching", "nothing was asked of it"


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    """Without overlaps, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def overlap(one: Interval, others: Sequence[Interval]) -> float:
    """Of an interval with others that do not overlap each other."""
    return sum(max(0.0, min(one[1], end) - max(one[0], start)) for start, end in others)


def device_facts(kernels: Sequence[Interval], host: Sequence[Interval]) -> dict[str, Any]:
    """``kernels``: all work of the GPU, copies too; ``host``: operators on the CPU. Busy and idle add up to the window,
    from the first of both to the last. Launch-bound: idle for more than half, and mostly while the host was at it."""
    busy, working = merged(kernels), merged(host)
    everything = merged([*busy, *working])
    start, end = everything[0][0], everything[-1][1]
    edges = [start, *(edge for one in busy for edge in one), end]
    gaps = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    idle = sum(b - a for a, b in gaps)
    launching = sum(overlap(gap, working) for gap in gaps)
    return {
        "window_ms": end - start,
        "busy_ms": end - start - idle,
        "busy_share": 1 - idle / (end - start) if end > start else 0.0,
        "kernels": len(kernels),
        "gaps": len(gaps),
        "longest_gap_ms": max((b - a for a, b in gaps), default=0.0),
        "idle_ms": {cause: ms for cause, ms in ((LAUNCHING, launching), (UNASKED, idle - launching)) if ms > 0},
        "launch_bound": idle > (end - start) / 2 and launching > idle / 2,
    }
