"""Layers as an engine ran and timed them: one schema for every engine, each beside what this machine could do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# ----------------------------------------------------------------------
# The roofline (Williams, Waterman, Patterson 2009) of a network on a machine whose peaks were measured.
#
# A layer of intensity I (FLOPs a byte) can run at min(peak of its type, I x bandwidth). Below the ridge point memory
# binds, above it the arithmetic. Small layers reach neither: what they cost is being started, and a roof says
# nothing about it.

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
    return {
        "utilisation": share,
        "bound": bound,
        "flag": "peak under-measured" if share > 1 else None,
    }


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
        "ridge": {
            precision: peaks.ridge(precision)
            for precision in {row["precision"] for row in arithmetic}
        },
    }


def _least_ms(row: Mapping[str, Any], peaks: Peaks) -> float:
    peak = peaks.gflops_s.get(row["precision"])
    by_compute = row["flops"] / (peak * 1e9) if peak else 0.0
    return 1e3 * float(max(by_compute, row["bytes"] / (peaks.bandwidth_gbytes_s * 1e9)))


BYTES = {
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "int8": 1,
    "u8": 1,
    "s8": 1,
    "i8": 1,
    "bool": 1,
    "int32": 4,
    "int64": 8,
}
ALIKE = 0.1  # of a forward pass, by which the sum of its layers may differ
UNPLACED = {
    "gflops_s": None,
    "gbytes_s": None,
    "intensity": None,
    "utilisation": None,
    "bound": None,
}


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """``macs`` and ``elements`` (numbers read and written) of a whole batch; 0 of what stands for no node of the graph.
    ``nodes``: the nodes that it stands for."""

    name: str
    type: str
    precision: str
    ms: float
    macs: int = 0
    elements: int = 0
    nodes: tuple[str, ...] = ()


def layer_rows(layers: Sequence[TimedLayer], peaks: Peaks | None) -> list[dict[str, Any]]:
    """One row a layer, in the engine's order; shares add up to 1. ``peaks``: None where they are not known."""
    total = sum(layer.ms for layer in layers)
    launch_ms = min(
        (layer.ms for layer in layers if layer.ms > 0), default=0.0
    )  # the cheapest: mostly its start
    rows = []
    for layer in layers:
        row = {
            "name": layer.name,
            "type": layer.type,
            "calls": 1,
            "ms": layer.ms,
            "share": layer.ms / total if total else 0.0,
            "macs": layer.macs,
            "flops": 2 * layer.macs,
            "bytes": layer.elements * BYTES.get(layer.precision, 0),
            "precision": layer.precision,
            "fused_from": list(layer.nodes),
        }
        rows.append(row | _place(row, peaks, launch_ms))
    return rows


def _place(row: Mapping[str, Any], peaks: Peaks | None, launch_ms: float) -> dict[str, Any]:
    if not row["bytes"]:  # an engine's own conversion: what it moves is not told
        return {**UNPLACED, "flag": "bytes unknown"}
    found = placed(row, peaks or Peaks({}, float("inf")), launch_ms)
    if peaks is None:
        found |= {"utilisation": None, "bound": None, "flag": "peaks unknown"}
    return found


def by_type(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sums of the rows of each type, longest first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        one = found.setdefault(
            row["type"], {"type": row["type"], "layers": 0, "ms": 0.0, "share": 0.0, "macs": 0}
        )
        one["layers"] += 1
        for key in ("ms", "share", "macs"):
            one[key] += row[key]
    return sorted(found.values(), key=lambda one: -one["ms"])


def agreement(
    sum_ms: float,
    run_sum_ms: float,
    forward_ms: float,
    profiled_ms: float,
    outside_ms: float,
    *,
    on_gpu: bool = False,
) -> tuple[float, str | None]:
    """The sum over a forward pass - 1, and why, where that is more than it should be. ``run_sum_ms``: the median of
    the sums within a run; ``profiled_ms``: a pass under the profiler, ``outside_ms`` of it in no layer. ``on_gpu``: a
    forward pass holds the copies to and from the device too."""
    if not forward_ms:
        return 0.0, None
    off, in_a_run = sum_ms / forward_ms - 1, run_sum_ms / forward_ms - 1
    if abs(off) <= ALIKE:
        return off, None
    if sum_ms < (1 - ALIKE) * run_sum_ms:
        why = "within a run they agree: something else took the cores now and then, and no layer's median shows it"
    elif in_a_run > 0:
        cost = f"a pass under it takes {profiled_ms / forward_ms - 1:+.1%}"
        why = (
            f"the profiler costs time inside the layers ({cost}), or the machine was busy meanwhile"
        )
    elif outside_ms > ALIKE * profiled_ms:
        copies = ", the copies to and from the GPU among it" if on_gpu else ""
        why = f"{outside_ms:.3f} ms of a pass under the profiler are in no layer{copies}"
    else:
        why = "within a run under the profiler they agree: the machine was busier during the passes without it"
    return off, f"the layers' sum is {off:+.1%} off the forward pass; {why}"


def in_no_layer(facts: Mapping[str, Any]) -> str | None:
    """What a pass under the profiler consists of beside its layers; None of a session that does not tell."""
    if "outside_ms" not in facts:
        return None
    slower = facts["profiled_ms"] / facts["forward_ms"] - 1 if facts["forward_ms"] else 0.0
    return (
        f"a pass under the profiler takes {facts['profiled_ms']:.3f} ms ({slower:+.1%}), {facts['outside_ms']:.3f} ms "
        "of it in no layer: before, between and after them"
    )


# ----------------------------------------------------------------------
# A GPU's time: when it was busy, and what it was idle for.

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
        "idle_ms": {
            cause: ms
            for cause, ms in ((LAUNCHING, launching), (UNASKED, idle - launching))
            if ms > 0
        },
        "launch_bound": idle > (end - start) / 2 and launching > idle / 2,
        "longest_gaps": [
            {"at_ms": a - start, "ms": b - a, "cause": cause_of((a, b), working)}
            for a, b in longest
        ],
        "shown": _beginning(busy, working, start, end),
    }


def cause_of(gap: Interval, working: Sequence[Interval]) -> str:
    """What filled most of it on the host."""
    return LAUNCHING if overlap(gap, working) > (gap[1] - gap[0]) / 2 else UNASKED


def _beginning(
    busy: Sequence[Interval], working: Sequence[Interval], start: float, end: float
) -> dict[str, Any]:
    """As much of both sides as a drawing holds; ms since the window's begin."""
    until = min([side[DRAWN - 1][1] for side in (busy, working) if len(side) > DRAWN], default=end)
    sides = {"host": working, "device": busy}
    kept = {
        name: [(a - start, b - start) for a, b in side if b <= until]
        for name, side in sides.items()
    }
    return {**kept, "until_ms": until - start}
