"""The facts of the passes ``layers``, ``roofline``, ``torch`` and ``device``, which measure the
network alone. passes.py explains the types and reads the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from msgspec import Meta

from detector.core.session.document import Count, Duration, Size

Peak = Annotated[float, Meta(ge=1e-6)]  # above 0, since it is a divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """The bandwidth of reading and copying a working set of ``bytes``, for all threads together.
    ``spread``: how far the best pass is above the median (0.1: 10%)."""

    bytes: Count
    threads: Count
    gbytes_s: Peak
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLevel:
    """A cache, or memory. ``name``: L1, L2, L3 or memory. ``bytes``: capacity for all threads."""

    name: str
    bytes: Count
    gbytes_s: Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The highest rates that this computer reaches. The keys of mappings are precisions.
    ``gflops_s``: GFLOP/s (int8: GOP/s). ``by``: the library and the layer that reached this rate.
    ``instructions``: CPU flag of the fastest instructions. ``spread``: (median of all passes) /
    (median of quiet passes) - 1. ``bandwidth_gbytes_s``: rate of main memory. ``bandwidths``: rate
    of each working set. ``levels``: rate of each cache. ``measured``: the date."""

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
        """Return the ridge point in FLOPs per byte of main memory; None if unknown."""
        peak = self.gflops_s.get(precision)
        return None if peak is None else peak / self.bandwidth_gbytes_s

    def bandwidth_at(self, working_set: int) -> float:
        """Return the GB/s for a working set of this many bytes: the highest rate of this and all
        larger sets, so that one disturbed measurement does not lower the roof."""
        larger = [
            one.gbytes_s
            for one in self.bandwidths
            if one.threads <= (self.threads or 1) and one.bytes >= working_set
        ]
        return max(larger, default=self.bandwidth_gbytes_s)


def keep_higher_peaks(first: Peaks, second: Peaks) -> Peaks:
    """Return the higher value of each peak, since disturbances can only lower a measured peak."""
    best = {
        name: max(
            (peaks for peaks in (first, second) if name in peaks.gflops_s),
            key=lambda peaks: peaks.gflops_s[name],
        )
        for name in {**first.gflops_s, **second.gflops_s}
    }
    sets = {(row.threads, row.bytes): row for row in first.bandwidths}
    for row in second.bandwidths:
        known = sets.get((row.threads, row.bytes), row)
        sets[row.threads, row.bytes] = max(known, row, key=lambda rate: rate.gbytes_s)
    levels = {level.name: level for level in first.levels}
    for level in second.levels:
        known_level = levels.get(level.name, level)
        levels[level.name] = max(known_level, level, key=lambda rate: rate.gbytes_s)
    return replace(
        second,
        gflops_s={name: peaks.gflops_s[name] for name, peaks in best.items()},
        by={name: peaks.by.get(name, "") for name, peaks in best.items()},
        spread={name: peaks.spread.get(name, 0.0) for name, peaks in best.items()},
        instructions={**first.instructions, **second.instructions},
        bandwidth_gbytes_s=max(first.bandwidth_gbytes_s, second.bandwidth_gbytes_s),
        bandwidths=list(sets.values()),
        levels=list(levels.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """A layer as the engine ran it; ``macs``, ``flops`` and ``bytes`` are for a whole batch.
    ``order``: position in a forward pass, from 1. ``block``: part of the model. ``parameters``:
    number of weights. ``shape``: shape of the output. ``fused_from``: nodes of the graph that this
    layer computes. ``intensity``: FLOPs per byte. ``utilisation``: share of the roofline that the
    layer reaches. ``bound``: what limits it. ``flag``: a warning about the row."""

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
    """The sums over all layers of one type."""

    type: str
    layers: Count
    ms: Duration
    share: float
    macs: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """The sums over one block of the model, such as ``model.6``. Each layer is in one block."""

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
    """``forward_ms``, ``profiled_ms``: a forward pass without and with the profiler.
    ``outside_ms``: the part of ``profiled_ms`` outside all layers. ``sum_ms``: the sum of the
    layers' medians. ``run_sum_ms``: the median of the runs' sums. ``off_by``:
    (``sum_ms`` - ``forward_ms``) / ``forward_ms``; ``flag`` explains a large value. ``macs``: MACs
    of the graph per picture. ``by_block``: in model order. ``uncounted``: number of nodes that no
    row counts, since their cost depends on the picture; ``macs`` is None if there are any."""

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
    """The model on the roofline of a data sheet (``--peak``, ``--bandwidth``). ``of_peak``,
    ``of_bandwidth``: shares that the forward pass reaches. ``bound``: the limit with the larger
    share, or "neither" if both shares are small."""

    precision: str
    peak_gflops_s: Peak
    bandwidth_gbytes_s: Peak
    ridge: float
    of_peak: float
    of_bandwidth: float
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineFacts:
    """The whole model on the roofline; ``macs``, ``flops`` and ``bytes`` are per picture.
    ``ridge``: precision -> ridge point. ``peaks``: measured or, for a GPU, from the data sheet.
    ``sheet``: the model compared with the data sheet. ``peak_under_measured``: names of layers
    above their roofline. ``uncounted``: as in ``LayersFacts``; if there are any, ``macs`` and the
    other sums are too low. ``doubts``: why the rates are unreliable."""

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
    doubts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of torch, by torch.profiler: figures are per frame in ``TorchFacts``, per batch
    in ``DeviceFacts``. ``self_ms``, ``total_ms``: CPU time without and with callees. ``device_ms``,
    ``device_total_ms``: GPU time without and with callees. ``..._mb``: memory allocated minus
    memory freed, which may be negative."""

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
        """Return the mean CPU time of a call, callees included."""
        return self.total_ms / self.calls if self.calls else None

    @property
    def device_avg_ms(self) -> float | None:
        return self.device_total_ms / self.calls if self.calls and self.device_total_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """``rows``: operators by name; ``by_shape``: operators by name and input shapes. Both lists
    start with the longest. ``self_ms``: sum over all operators, listed or not. ``trace``: a file in
    the session. ``frames``: number of profiled frames, in batches of ``batch``. ``forward_ms``,
    ``profiled_ms``: mean time of a batch without and with the profiler. ``slowdown``: fastest batch
    with the profiler / fastest without. ``flag``: why ``self_ms`` and ``profiled_ms`` disagree."""

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
    """A period of GPU idle time, ``at_ms`` after the window's start."""

    at_ms: float
    ms: Duration
    cause: str


@dataclass(frozen=True, slots=True)
class Shown:
    """The first part of the window, up to ``until_ms``, for a drawing. ``host``, ``device``: begin
    and end of each period of work."""

    host: Sequence[tuple[float, float]]
    device: Sequence[tuple[float, float]]
    until_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A GPU's work during some batches. ``idle_ms``: cause -> idle time. All idle times and
    ``busy_ms`` add up to ``window_ms``. ``longest_gaps``: longest first."""

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
