"""A GPU's time: when it was busy, and what it was idle for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Interval = tuple[float, float]
"""Begin and end, in ms."""

LONGEST = 20  # gaps that are told one by one
DRAWN = 400  # intervals of a side in a drawing
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
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:LONGEST]
    return {
        "window_ms": end - start,
        "busy_ms": end - start - idle,
        "busy_share": 1 - idle / (end - start) if end > start else 0.0,
        "kernels": len(kernels),
        "gaps": len(gaps),
        "longest_gap_ms": max((b - a for a, b in gaps), default=0.0),
        "idle_ms": {cause: ms for cause, ms in ((LAUNCHING, launching), (UNASKED, idle - launching)) if ms > 0},
        "launch_bound": idle > (end - start) / 2 and launching > idle / 2,
        "longest_gaps": [{"at_ms": a - start, "ms": b - a, "cause": cause_of((a, b), working)} for a, b in longest],
        "shown": _beginning(busy, working, start, end),
    }


def cause_of(gap: Interval, working: Sequence[Interval]) -> str:
    """What filled most of it on the host."""
    return LAUNCHING if overlap(gap, working) > (gap[1] - gap[0]) / 2 else UNASKED


def _beginning(busy: Sequence[Interval], working: Sequence[Interval], start: float, end: float) -> dict[str, Any]:
    """As much of both sides as a drawing holds; ms since the window's begin."""
    until = min([side[DRAWN - 1][1] for side in (busy, working) if len(side) > DRAWN], default=end)
    sides = {"host": working, "device": busy}
    kept = {name: [(a - start, b - start) for a, b in side if b <= until] for name, side in sides.items()}
    return {**kept, "until_ms": until - start}
