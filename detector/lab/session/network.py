"""The facts of the passes ``layers``, ``roofline``, ``torch`` and ``device``: the network on its
engine, as ``passes`` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from msgspec import Meta

from detector.core.session.document import Count, Duration, Size

Peak = Annotated[float, Meta(ge=1e-6)]  # what a computer reaches at most; a tiny one is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """Of a working set of so many bytes, of all threads together, that is read or copied again and
    again. ``spread``: how far the best pass is above the median one (0.1: 10%)."""

    bytes: Count
    threads: Count
    gbytes_s: Peak
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLevel:
    """``name``: L1, L2, L3 or memory. ``bytes``: what it holds for all threads of the run."""

    name: str
    bytes: Count
    gbytes_s: Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The highest rates that this computer reaches. ``gflops_s``: by precision (int8: GOP/s).
    ``by``: the library that reached it; ``instructions``: what it can use for that; ``spread``: how
    far the median try is from the best. ``bandwidth_gbytes_s``: of the memory; ``bandwidths``: over
    working sets; ``levels``: of the caches. ``measured``: the day."""

    gflops_s: Mapping[str, Peak]
    by: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    bandwidth_gbytes_s: Peak
    spread: Mapping[str, float] = field(default_factory=dict)
    instructions: Mapping[str, str] = field(default_factory=dict)
    bandwidths: Sequence[Bandwidth] = ()
    levels: Sequence[CacheLevel] = ()
    measured: str | None = None

    def ridge(self, precision: str) -> float | None:
        """Return the FLOPs a byte where arithmetic and memory are equally fast; None if unknown."""
        peak = self.gflops_s.get(precision)
        return None if peak is None else peak / self.bandwidth_gbytes_s

    def bandwidth_at(self, working_set: int) -> float:
        """GB/s of what touches so many bytes. A smaller set is at least as fast as a larger one, so
        that a disturbed measurement does not lower the roof below its neighbours'."""
        larger = [
            one.gbytes_s
            for one in self.bandwidths
            if one.threads <= (self.threads or 1) and one.bytes >= working_set
        ]
        return max(larger, default=self.bandwidth_gbytes_s)


def higher_of(one: Peaks, other: Peaks) -> Peaks:
    """Return the higher of each peak in two measurements: any disturbance lowers one."""
    of_kernels = {
        name: max(
            (peaks for peaks in (one, other) if name in peaks.gflops_s),
            key=lambda peaks: peaks.gflops_s[name],
        )
        for name in {**one.gflops_s, **other.gflops_s}
    }
    sets = {(each.threads, each.bytes): each for each in one.bandwidths}
    for each in other.bandwidths:
        known = sets.get((each.threads, each.bytes), each)
        sets[each.threads, each.bytes] = max(known, each, key=lambda it: it.gbytes_s)
    levels = {level.name: level for level in one.levels}
    for level in other.levels:
        known_level = levels.get(level.name, level)
        levels[level.name] = max(known_level, level, key=lambda it: it.gbytes_s)
    return replace(
        other,
        gflops_s={name: peaks.gflops_s[name] for name, peaks in of_kernels.items()},
        by={name: peaks.by.get(name, "") for name, peaks in of_kernels.items()},
        spread={name: peaks.spread.get(name, 0.0) for name, peaks in of_kernels.items()},
        instructions={**one.instructions, **other.instructions},
        bandwidth_gbytes_s=max(one.bandwidth_gbytes_s, other.bandwidth_gbytes_s),
        bandwidths=list(sets.values()),
        levels=list(levels.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """A layer as the engine ran it; ``macs``, ``flops`` and ``bytes`` are of a whole batch.
    ``order``: its place in a pass, from 1. ``block``: the part of the model that it belongs to.
    ``parameters``: its weights; ``shape``: of what it writes.
    ``fused_from``: the nodes of the graph that it stands for. ``intensity``: FLOPs a byte.
    ``utilisation``: of its roof. ``bound``: what limits it. ``flag``: what is odd about the row."""

    name: str
    type: str
    calls: Count = 1
    ms: Duration
    share: float
    macs: Count
    flops: Count
    bytes: Count
    precision: str
    order: int | None = None
    block: str | None = None
    parameters: int | None = None
    shape: Sequence[int] | None = None
    fused_from: Sequence[str] = ()
    gflops_s: float | None = None
    gbytes_s: float | None = None
    intensity: float | None = None
    utilisation: float | None = None
    bound: str | None = None
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class TypeRow:
    """All layers of one type together."""

    type: str
    layers: Count
    ms: Duration
    share: float
    macs: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """All layers of one block of the model together, as ``model.6``: each layer is in one block, so
    that the blocks' times add up."""

    block: str
    layers: Count
    ms: Duration
    share: float
    parameters: Count
    macs: Count
    flops: Count
    bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersFacts:
    """``forward_ms``: a forward pass without the profiler; ``profiled_ms``: under it;
    ``outside_ms``: the part of that in no layer. ``sum_ms``: of the layers' medians;
    ``run_sum_ms``: the median of the sums of single runs. ``off_by``: sum_ms / forward_ms - 1, and
    ``flag`` the reason where that is much. ``macs``: of the graph, a picture; ``parameters``: its
    weights. ``by_block``: in the model's order.
    ``uncounted``: nodes whose costs are in no row, since the picture decides how many rows they
    compute; then ``macs`` is None."""

    engine: str
    precision: str
    threads: Count
    device: str = "cpu"
    batch: int = 1
    runs: int | None = None
    forward_ms: Duration
    profiled_ms: float | None = None
    sum_ms: Duration
    run_sum_ms: float | None = None
    outside_ms: float | None = None
    off_by: float
    flag: str | None = None
    notes: Sequence[str] = ()
    macs: int | None = None
    parameters: int | None = None
    uncounted: int = 0
    peaks: Peaks | None = None
    rows: Sequence[LayerRow]
    by_type: Sequence[TypeRow] = ()
    by_block: Sequence[BlockRow] = ()
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetRoof:
    """The model below the roof that a data sheet promises (``--peak``, ``--bandwidth``).
    ``of_peak``, ``of_bandwidth``: shares that the forward pass reaches of either; ``bound``: by the
    larger one, unless both are small."""

    precision: str
    peak_gflops_s: Peak
    bandwidth_gbytes_s: Peak
    ridge: float
    of_peak: float
    of_bandwidth: float
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineFacts:
    """The whole model on the roofline; ``macs``, ``flops`` and ``bytes`` a picture. ``ridge``: by
    precision. ``peaks``: measured here; of a GPU, of its data sheet (``sheet``).
    ``peak_under_measured``: the names of layers above their roof. ``uncounted``: as in
    ``LayersFacts``; the sums are then less than the whole."""

    macs: Count
    flops: Count
    bytes: Count | None = None
    intensity: float | None = None
    gflops_s: float | None
    utilisation: float | None
    bound: str | None
    ms_by_bound: Mapping[str, float] = field(default_factory=dict)
    ridge: Mapping[str, float | None] = field(default_factory=dict)
    peaks: Peaks
    forward_ms: float | None = None
    sheet: SheetRoof | None = None
    peak_under_measured: Sequence[str] = ()
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class Operator:
    """One of torch's operators, as torch.profiler tells it: ``TorchFacts`` per frame,
    ``DeviceFacts`` per batch. ``self_...``: without what it calls. ``total_ms``: on the CPU, with
    what it calls; ``device_ms``: on the GPU, without, ``device_total_ms``: with what it calls.
    ``..._mb``: memory taken less memory given back, so it may be below 0."""

    name: str
    shapes: str
    calls: float
    self_ms: float
    total_ms: float
    device_ms: float
    share: float
    device_total_ms: float | None = None
    self_cpu_mb: float | None = None
    cpu_mb: float | None = None
    self_device_mb: float | None = None
    device_mb: float | None = None

    @property
    def cpu_avg_ms(self) -> float | None:
        """Return the CPU time of one call, callees included."""
        return self.total_ms / self.calls if self.calls else None

    @property
    def device_avg_ms(self) -> float | None:
        return self.device_total_ms / self.calls if self.calls and self.device_total_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """``rows``: operators by name; ``by_shape``: by name and shapes of their inputs, both with the
    longest first; ``self_ms``: all of them, listed or not. ``trace``: a file of the session.
    ``frames``: under the profiler, in batches of ``batch``. ``forward_ms``, ``profiled_ms``: of a
    batch, as the mean over its passes without and under the profiler; ``slowdown``: of the fastest
    pass. ``flag``: the reason where the operators' own times are far from the pass."""

    rows: Sequence[Operator]
    by_shape: Sequence[Operator]
    self_ms: float
    trace: str
    frames: Count
    batch: Size = 1
    device: str
    forward_ms: float
    profiled_ms: float
    flag: str | None = None
    slowdown: float


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of GPU idle time, from ``at_ms`` in the window."""

    at_ms: float
    ms: Duration
    cause: str


@dataclass(frozen=True, slots=True)
class Shown:
    """The beginning of the window for a drawing: intervals (begin, end) of work, in ms."""

    host: Sequence[tuple[float, float]]
    device: Sequence[tuple[float, float]]
    until_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A GPU over a window of some batches. ``idle_ms``: by cause; with ``busy_ms`` it adds up to
    ``window_ms``. ``longest_gaps``: longest first."""

    device: str
    batches: Count
    window_ms: Duration
    busy_ms: float
    busy_share: float
    kernels: Count
    gaps: Count
    longest_gap_ms: Duration
    idle_ms: Mapping[str, float]
    launch_bound: bool
    longest_gaps: Sequence[Gap] = ()
    shown: Shown | None = None
    rows: Sequence[Operator] = ()
    slowdown: float
