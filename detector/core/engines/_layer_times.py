"""Time every layer: runs with and without the engine's profiler, on the same pictures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.core.engines.base import LayerExecution, LayerProfiler, RawRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WARMUP = 3  # warm-up runs of each: caches, pools and packed weights
# Only the fastest in this many runs counts: other load slows a pass, but rarely a short layer.
QUIET = 4
FEWEST = 10  # least number of runs for a median, if there are so many


class LayerTimes(NamedTuple):
    """Medians over the ``counted`` quiet runs, in ms. ``forward_ms``: without the profiler;
    ``run_sum_ms``: of one run's layers. ``outside_ms``: profiled, but in no layer."""

    layers: list[LayerExecution]
    forward_ms: float
    profiled_ms: float
    run_sum_ms: float
    outside_ms: float
    counted: int
    notes: tuple[str, ...] = ()


def measure_layers(
    plain: RawRequest,
    profiler: LayerProfiler,
    slots: Sequence[NDArray[np.uint8]],
    runs: int,
    budget_s: float,
) -> LayerTimes:
    """Run ``plain`` and ``profiler`` alternately, so that other load affects both, ``runs`` times
    each or for ``budget_s``. ``slots``: u8 RGB [B, H, W, 3]."""
    forward: list[float] = []
    profiled: list[float] = []
    until = time.perf_counter() + budget_s
    for slot in islice(cycle(slots), WARMUP + runs):
        if len(forward) >= WARMUP + FEWEST and time.perf_counter() > until:
            break
        plain.slot[:] = slot
        forward.append(_ms(plain.infer, len(slot)))
        profiled.append(_ms(profiler.run, slot))
    measured = profiler.times()
    sums = [sum(times) for times in zip(*(times for _, times in measured), strict=True)]
    runs_of_layers = quiet_runs(sums)
    layers = [
        replace(layer, median_ms=statistics.median(times[at] for at in runs_of_layers))
        for layer, times in measured
    ]
    outside = statistics.median(profiled[at] - sums[at] for at in quiet_runs(profiled))
    return LayerTimes(
        layers, _median(forward), _median(profiled), _median(sums), outside, len(runs_of_layers)
    )


def _ms(function: Any, argument: Any) -> float:
    start = time.perf_counter()
    function(argument)
    return (time.perf_counter() - start) * 1e3


def quiet_runs(times: Sequence[float]) -> list[int]:
    """Return the indexes of the runs that count: the fastest ones, without the warm-up."""
    order = sorted(range(WARMUP, len(times)), key=lambda at: times[at])
    return order[: max(FEWEST, len(order) // QUIET)]


def _median(times: Sequence[float]) -> float:
    return statistics.median(times[at] for at in quiet_runs(times))


def match_layers(
    layers: Sequence[LayerExecution], reported: Sequence[Sequence[tuple[str, str, float]]]
) -> list[tuple[LayerExecution, list[float]]]:
    """Match what a profiler ``reported`` ((name, type, ms) in order, per run) with the engine's
    layers. Unlisted layers get an unknown precision; listed ones without time did not run."""
    listed: dict[tuple[str, int], LayerExecution] = {}
    seen: dict[str, int] = {}
    for layer in layers:
        listed[layer.name, seen.setdefault(layer.name, 0)] = layer
        seen[layer.name] += 1
    matched: dict[tuple[str, int], tuple[LayerExecution, list[float]]] = {}
    for run in reported:
        counts: dict[str, int] = {}
        for name, kind, ms in run:
            key = (name, counts.setdefault(name, 0))
            counts[name] += 1
            layer = listed.get(key) or LayerExecution(name, kind, "unknown")
            matched.setdefault(key, (layer, []))[1].append(ms)
    return [each for each in matched.values() if len(each[1]) == len(reported)]
