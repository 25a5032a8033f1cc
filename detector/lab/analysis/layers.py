"""Facts about the network: its layers and their roofline, and a GPU's busy and idle time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from detector.core.analysis.summary import BYTES as KNOWN_BYTES
from detector.core.errors import UsageError
from detector.core.errors.text import counted
from detector.lab.session.network import (
    BlockRow,
    DeviceFacts,
    Gap,
    LayerRow,
    LayersFacts,
    Operator,
    Peaks,
    RooflineFacts,
    SheetRoof,
    Shown,
    TypeRow,
)

# Layers as rows

BYTES = KNOWN_BYTES | {"i8": 1, "bool": 1, "int32": 4, "int64": 8}
TOLERANCE = 0.1  # share; we explain larger differences between a pass and its layers' sum


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """A layer with the engine's timing for a batch. ``macs`` and ``elements`` (values read and
    written) are 0 if no ``nodes`` of the graph belong to it. ``view``: the layer moves no data."""

    name: str
    type: str
    precision: str
    ms: float
    macs: int = 0
    elements: int = 0
    nodes: tuple[str, ...] = ()
    parameters: int = 0
    shape: tuple[int, ...] = ()
    view: bool = False


def find_block(name: str) -> str:
    """Return the part of the model that holds a node: "model.6" for "/model.6/cv1/conv/Conv"."""
    parts = [part for part in re.split(r"[./]", name) if part]
    for at, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: at + 1])
    return parts[0] if parts else name


def layer_rows(layers: Sequence[TimedLayer], peaks: Peaks | None) -> list[LayerRow]:
    """Return a row for each layer, in the engine's order. ``peaks``: None if unknown."""
    total = sum(layer.ms for layer in layers)
    # The shortest layer hardly computes anything, so its time is our estimate of a launch's time.
    launch_ms = min((layer.ms for layer in layers if layer.ms > 0), default=0.0)
    rows = []
    for order, layer in enumerate(layers, 1):
        row = LayerRow(
            order=order,
            block=find_block(layer.nodes[0] if layer.nodes else layer.name),
            parameters=layer.parameters,
            shape=list(layer.shape),
            name=layer.name,
            type=layer.type,
            ms=layer.ms,
            share=layer.ms / total if total else 0.0,
            macs=layer.macs,
            flops=2 * layer.macs,
            bytes=layer.elements * BYTES.get(layer.precision, 0),
            precision=layer.precision,
            fused_from=list(layer.nodes),
        )
        if layer.view:
            row = replace(row, flag="moves nothing")
        elif not row.bytes:  # such as a conversion that the engine inserted
            row = replace(row, flag="bytes unknown")
        elif peaks is None:
            row = replace(_with_rates(row), flag="peaks unknown")
        else:
            row = place_layer(row, peaks, launch_ms)
        rows.append(row)
    return rows


def sum_by_type(rows: Sequence[LayerRow]) -> list[TypeRow]:
    by_type: dict[str, list[LayerRow]] = {}
    for row in rows:
        by_type.setdefault(row.type, []).append(row)
    sums = [
        TypeRow(
            type=name,
            layers=len(members),
            ms=sum(row.ms for row in members),
            share=sum(row.share for row in members),
            macs=sum(row.macs for row in members),
        )
        for name, members in by_type.items()
    ]
    return sorted(sums, key=lambda one: -one.ms)


def sum_by_block(rows: Sequence[LayerRow]) -> list[BlockRow]:
    by_block: dict[str, list[LayerRow]] = {}
    for row in rows:
        by_block.setdefault(row.block or row.name, []).append(row)
    return [
        BlockRow(
            block=name,
            layers=len(members),
            ms=sum(row.ms for row in members),
            share=sum(row.share for row in members),
            parameters=sum(row.parameters or 0 for row in members),
            macs=sum(row.macs for row in members),
            flops=sum(row.flops for row in members),
            bytes=sum(row.bytes for row in members),
        )
        for name, members in by_block.items()
    ]


LEAST_TIME = 0.01  # share of the time; shorter layers are not ranked


def far_from_roof(rows: Sequence[LayerRow], count: int) -> tuple[list[LayerRow], list[LayerRow]]:
    """Return two lists: the layers nearest to their roof, and those furthest from it."""
    placed = [row for row in rows if row.utilisation is not None and row.share >= LEAST_TIME]
    placed.sort(key=lambda row: -(row.utilisation or 0.0))
    best = placed[: min(count, (len(placed) + 1) // 2)]
    return best, placed[len(best) :][: -count - 1 : -1]


def explain_sum(
    sum_ms: float,
    run_sum_ms: float,
    forward_ms: float,
    profiled_ms: float,
    outside_ms: float,
    *,
    on_gpu: bool,
) -> tuple[float, str | None]:
    """Return (layers' sum / forward pass) - 1, and an explanation if this difference is large.

    ``sum_ms``: the sum of the layers' medians. ``run_sum_ms``: the median of the runs' sums.
    ``profiled_ms``: a pass under the profiler. ``outside_ms``: its part outside the layers.
    """
    if not forward_ms:
        return 0.0, None
    off, off_in_runs = sum_ms / forward_ms - 1, run_sum_ms / forward_ms - 1
    if abs(off) <= TOLERANCE:
        return off, None
    if sum_ms < (1 - TOLERANCE) * run_sum_ms:
        reason = (
            "other work interrupted some layers: a run's sum includes that time, medians omit it"
        )
    elif off_in_runs > 0:
        cost = f"a profiled pass takes {profiled_ms / forward_ms - 1:+.1%}"
        reason = (
            f"each layer is launched and synchronized separately ({cost})"
            if on_gpu
            else f"the profiler adds time inside the layers ({cost}), or the computer was busy "
            "during the profiled passes"
        )
    elif outside_ms > TOLERANCE * profiled_ms:
        copies = ", including the copies to and from the GPU" if on_gpu else ""
        reason = (
            f"a profiled pass takes {profiled_ms:.3f} ms, of which {outside_ms:.3f} ms are outside "
            f"the layers{copies}"
        )
    else:
        reason = "under the profiler they agree; the computer was busier in the unprofiled passes"
    return off, f"the sum of the layers differs from the forward pass by {off:+.1%}: {reason}"


def describe_outside(facts: LayersFacts) -> str | None:
    """Describe a profiled pass's time outside its layers; None if unknown or already flagged."""
    if facts.outside_ms is None or facts.profiled_ms is None or "outside the" in (facts.flag or ""):
        return None
    slower = facts.profiled_ms / facts.forward_ms - 1 if facts.forward_ms else 0.0
    return (
        f"a profiled pass takes {facts.profiled_ms:.2f} ms ({slower:+.1%}), "
        f"{facts.outside_ms:.2f} ms of it outside the layers"
    )


# The roofline (Williams, Waterman, Patterson 2009), with peaks measured on this computer
#
# A layer of intensity I (FLOPs per byte) can run at min(peak of its precision, I x bandwidth). The
# bandwidth is that of the cache that holds the working set, or of memory. Memory is the limit if I
# is below peak / bandwidth (the ridge point). Small layers reach no limit: launching takes longer.

COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch overhead"
NEITHER = "neither"
ABOVE = 1.05  # above this share of its roof, a layer's peak was measured too low; 5% is chance
LEAST_SHARE = 0.1  # share of the roof; a layer that reaches less is limited by something else


def place_layer(row: LayerRow, peaks: Peaks, launch_ms: float) -> LayerRow:
    """Return the row with its rates, its share of the roof and its limit."""
    row, peak = _with_rates(row), peaks.gflops_s.get(row.precision)
    if not row.ms:
        return replace(row, flag="not measured")
    if row.flops and peak is None:
        return row
    by_compute, by_memory = _least_ms(row, peaks)
    share = max(by_compute, by_memory) / row.ms
    if row.ms <= 2 * launch_ms:
        bound = LAUNCH
    elif share < LEAST_SHARE:  # such as a sigmoid, whose exponentials are not counted as FLOPs
        bound = NEITHER
    else:
        bound = COMPUTE if by_compute >= by_memory else MEMORY
    flag = "peak under-measured" if share > ABOVE else None
    return replace(row, utilisation=share, bound=bound, flag=flag)


def above_roof(rows: Sequence[LayerRow]) -> list[str]:
    return [row.name for row in rows if (row.utilisation or 0.0) > ABOVE]


def place_model(
    rows: Sequence[LayerRow], peaks: Peaks, forward_ms: float, batch: int
) -> RooflineFacts:
    flops, moved = sum(row.flops for row in rows), sum(row.bytes for row in rows)
    least_ms = sum(max(_least_ms(row, peaks)) for row in rows)
    by_bound: dict[str, float] = {}
    for row in rows:
        if row.bound:
            by_bound[row.bound] = by_bound.get(row.bound, 0.0) + row.ms
    return RooflineFacts(
        macs=sum(row.macs for row in rows) // batch,
        flops=flops // batch,
        bytes=moved // batch,
        intensity=flops / moved if moved else None,
        gflops_s=flops / forward_ms / 1e6 if forward_ms else None,
        utilisation=least_ms / forward_ms if forward_ms else None,
        bound=max(by_bound, key=lambda bound: by_bound[bound], default=None),
        ms_by_bound=by_bound,
        ridge={name: peaks.ridge(name) for name in {row.precision for row in rows if row.flops}},
        peaks=peaks,
        forward_ms=forward_ms,
        peak_under_measured=above_roof(rows),
    )


def place_on_sheet(
    rows: Sequence[LayerRow], precision: str, sheet: Peaks, forward_ms: float
) -> SheetRoof | None:
    """Compare the forward pass with a data sheet's peaks; None if nothing was counted or timed."""
    flops, moved = sum(row.flops for row in rows), sum(row.bytes for row in rows)
    if not (flops and moved and forward_ms):
        return None
    peak, bandwidth = sheet.gflops_s[precision], sheet.bandwidth_gbytes_s
    of_peak = flops / forward_ms / 1e6 / peak
    of_bandwidth = moved / forward_ms / 1e6 / bandwidth
    bound = COMPUTE if of_peak >= of_bandwidth else MEMORY
    return SheetRoof(
        precision=precision,
        peak_gflops_s=peak,
        bandwidth_gbytes_s=bandwidth,
        ridge=peak / bandwidth,
        of_peak=of_peak,
        of_bandwidth=of_bandwidth,
        bound=NEITHER if max(of_peak, of_bandwidth) < LEAST_SHARE else bound,
    )


QUANTITY = re.compile(r"\s*([\d.]+)\s*([kMGTP])(.+?)\s*")
FACTORS = {"k": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3, "P": 1e6}


def parse_rate(text: str, units: Sequence[str], option: str) -> float:
    """Convert "8.1TFLOPS" or "320 GB/s" to billions per second. Raises UsageError."""
    match = QUANTITY.fullmatch(text)
    with suppress(ValueError):
        if match and match[3].lower() in units and (value := float(match[1])) > 0:
            return value * FACTORS[match[2]]
    raise UsageError(
        f"{option} {text}: give a number with its unit, such as {option} {EXAMPLES[option]}"
    )


EXAMPLES = {"--peak": "8.1TFLOPS", "--bandwidth": "320GB/s"}
SHEET = "data sheet"


def parse_sheet(peak: str | None, bandwidth: str | None) -> tuple[float, float] | None:
    """Return GFLOP/s and GB/s; None if neither is given. Raises UsageError if only one is."""
    if peak is None and bandwidth is None:
        return None
    if peak is None or bandwidth is None:
        raise UsageError("--peak and --bandwidth go together: a roofline needs both")
    flops = ("flops", "flop/s", "flops/s", "ops", "op/s")
    return parse_rate(peak, flops, "--peak"), parse_rate(bandwidth, ("b/s",), "--bandwidth")


def describe_uncounted(nodes: int) -> str:
    return (
        f"the output size of {counted(nodes, 'node')} depends on the picture: their MACs and "
        "bytes are not counted, so the sums are too low"
    )


def describe_above_roof(layers: int) -> str:
    return f"layers above their roofline: {layers} (peak measured too low)"


def _with_rates(row: LayerRow) -> LayerRow:
    seconds = row.ms / 1e3
    return replace(
        row,
        gflops_s=row.flops / seconds / 1e9 if seconds > 0 else None,
        gbytes_s=row.bytes / seconds / 1e9 if seconds > 0 else None,
        intensity=row.flops / row.bytes if row.bytes else None,
    )


def _least_ms(row: LayerRow, peaks: Peaks) -> tuple[float, float]:
    """Return the least ms for arithmetic (0 if its peak is unknown) and for memory traffic."""
    peak = peaks.gflops_s.get(row.precision)
    by_compute = row.flops / (peak * 1e9) * 1e3 if peak else 0.0
    return by_compute, row.bytes / (peaks.bandwidth_at(row.bytes) * 1e9) * 1e3


# A GPU's busy and idle time

Interval = tuple[float, float]
"""Start and end, in ms."""

LONGEST = 20  # number of gaps listed
DRAWN = 400  # a drawing shows at most this many intervals of the host, and as many of the device
LAUNCHING, NO_REQUEST = "the host was preparing or launching", "nothing was asked of it"
WAITING = "the host waited for the GPU"


def device_facts(
    kernels: Sequence[Interval],
    host: Sequence[Interval],
    *,
    device: str,
    batches: int,
    rows: Sequence[Operator] = (),
    slowdown: float = 1.0,
    waits: Sequence[Interval] = (),
) -> DeviceFacts:
    """Return a GPU's busy and idle time. ``kernels``: all its work, copies included. ``host``:
    operators on the CPU. ``waits``: operators that only wait for the GPU."""
    busy, working, waiting = merge(kernels), merge(host), merge(waits)
    everything = merge([*busy, *working, *waiting])
    start, end = everything[0][0], everything[-1][1]
    edges = [start, *(edge for one in busy for edge in one), end]
    gaps = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    idle = sum(b - a for a, b in gaps)
    waited = sum(overlap(gap, waiting) for gap in gaps)
    worked = sum(overlap(gap, merge([*working, *waiting])) for gap in gaps)
    launching = worked - waited
    causes = ((LAUNCHING, launching), (WAITING, waited), (NO_REQUEST, idle - worked))
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:LONGEST]
    return DeviceFacts(
        device=device,
        batches=batches,
        window_ms=end - start,
        busy_ms=end - start - idle,
        busy_share=1 - idle / (end - start) if end > start else 0.0,
        kernels=len(kernels),
        gaps=len(gaps),
        longest_gap_ms=max((b - a for a, b in gaps), default=0.0),
        idle_ms={cause: ms for cause, ms in causes if ms > 0},
        launch_bound=idle > (end - start) / 2 and launching > idle / 2,
        longest_gaps=[
            Gap(a - start, b - a, _find_cause((a, b), working, waiting)) for a, b in longest
        ],
        shown=_cut_for_drawing(busy, working, start, end),
        rows=rows,
        slowdown=slowdown,
    )


def merge(intervals: Sequence[Interval]) -> list[Interval]:
    """Return the union of the intervals: in order, without overlaps."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def overlap(one: Interval, others: Sequence[Interval]) -> float:
    """Return how much of ``one`` is covered by ``others``, which must not overlap each other."""
    return sum(max(0.0, min(one[1], end) - max(one[0], start)) for start, end in others)


def _find_cause(gap: Interval, working: Sequence[Interval], waiting: Sequence[Interval]) -> str:
    half, waited = (gap[1] - gap[0]) / 2, overlap(gap, waiting)
    if waited > half:
        return WAITING
    return LAUNCHING if overlap(gap, working) - waited > half else NO_REQUEST


def _cut_for_drawing(
    busy: Sequence[Interval], working: Sequence[Interval], start: float, end: float
) -> Shown:
    """Return the first part of the window that fits a drawing, in ms since the window's start."""
    until = min([side[DRAWN - 1][1] for side in (busy, working) if len(side) > DRAWN], default=end)
    host, device = (
        [(a - start, b - start) for a, b in side if b <= until] for side in (working, busy)
    )
    return Shown(host, device, until - start)
