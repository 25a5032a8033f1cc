"""Time every layer: run the same pictures with and without the engine's profiler."""

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

WARMUP = 3  # the first runs are ignored: the engine fills caches and pools, and packs weights
# Only the fastest 1 / QUIET of the runs count, since other programs slow the rest.
QUIET = 4
FEWEST = 10  # medians are over at least this many runs, or over all runs if there are fewer


class LayerTimes(NamedTuple):
    """Medians in ms over the ``counted`` fastest runs. ``forward_ms``: a run without the profiler.
    ``profiled_ms``: one with it; of this, ``run_sum_ms`` is in layers, ``outside_ms`` elsewhere."""

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
    """Run ``plain`` and ``profiler`` alternately, so that other programs slow them equally. Stop
    after ``runs`` runs of each, or after ``budget_s``. ``slots``: u8 RGB [B, H, W, 3]."""
    forward: list[float] = []
    profiled: list[float] = []
    deadline = time.perf_counter() + budget_s
    for slot in islice(cycle(slots), WARMUP + runs):
        if len(forward) >= WARMUP + FEWEST and time.perf_counter() > deadline:
            break
        plain.slot[:] = slot
        forward.append(_time_ms(plain.infer, len(slot)))
        profiled.append(_time_ms(profiler.run, slot))
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


def _time_ms(function: Any, argument: Any) -> float:
    start = time.perf_counter()
    function(argument)
    return (time.perf_counter() - start) * 1e3


def quiet_runs(times: Sequence[float]) -> list[int]:
    """Return the indexes of the runs that count: the fastest after the warm-up."""
    order = sorted(range(WARMUP, len(times)), key=lambda at: times[at])
    return order[: max(FEWEST, len(order) // QUIET)]


def _median(times: Sequence[float]) -> float:
    return statistics.median(times[at] for at in quiet_runs(times))


def match_layers(
    layers: Sequence[LayerExecution], reported: Sequence[Sequence[tuple[str, str, float]]]
) -> list[tuple[LayerExecution, list[float]]]:
    """Return each layer with its ms in every run. ``reported``: for each run, the profiler's (name,
    type, ms) in order. A layer that the engine does not list gets an unknown precision. A layer is
    omitted if its time is missing in any run."""
    listed: dict[tuple[str, int], LayerExecution] = {}
    counts_listed: dict[str, int] = {}
    for layer in layers:
        listed[layer.name, counts_listed.setdefault(layer.name, 0)] = layer
        counts_listed[layer.name] += 1
    matched: dict[tuple[str, int], tuple[LayerExecution, list[float]]] = {}
    for run in reported:
        counts: dict[str, int] = {}
        for name, kind, ms in run:
            key = (name, counts.setdefault(name, 0))
            counts[name] += 1
            layer = listed.get(key) or LayerExecution(name, kind, "unknown")
            matched.setdefault(key, (layer, []))[1].append(ms)
    return [match for match in matched.values() if len(match[1]) == len(reported)]
