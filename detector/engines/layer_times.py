"""What every layer takes: runs under the engine's own profiler and without it, in turn, on the same pictures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.engines.base import LayerExecution, LayerProfiler, Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WARMUP = 3  # of each, not counted: caches, pools and packed weights
QUIET = 4  # of so many runs the fastest one counts: who shares the machine stretches a pass, and hardly a short layer
FEWEST = 10  # runs that a median is taken of, where there are so many


class LayerTimes(NamedTuple):
    """Medians over the quiet runs, in ms: of each layer (``median_ms``), of a forward pass, of one under the profiler.
    ``counted``: how many runs those are. ``run_sum_ms``: of the layers' sum within a run, which what interrupted one
    layer or another is in, and in none of their medians. ``outside_ms``: of what a run under the profiler took beside
    its own layers. ``notes``: the engine's, for the user."""

    layers: list[LayerExecution]
    forward_ms: float
    profiled_ms: float
    run_sum_ms: float
    outside_ms: float
    counted: int
    notes: tuple[str, ...] = ()


def measure_layers(
    plain: Request,
    profiler: LayerProfiler,
    slots: Sequence[NDArray[np.uint8]],
    runs: int,
    budget_s: float,
) -> LayerTimes:
    """``slots``: pictures, taken in turn by both; a slow second then falls on both. Both have the same threads. Ends
    after ``runs`` of each, or past ``budget_s`` once there are enough for a median."""
    forward: list[float] = []
    profiled: list[float] = []
    until = time.perf_counter() + budget_s
    for slot in islice(cycle(slots), WARMUP + runs):
        if len(forward) >= WARMUP + FEWEST and time.perf_counter() > until:
            break
        plain.slot[:] = slot
        forward.append(_ms(plain.infer, len(slot)))
        profiled.append(_ms(profiler.run, slot))
    told = profiler.times()
    sums = [sum(times) for times in zip(*(times for _, times in told), strict=True)]
    runs_of_layers = quiet_runs(sums)
    layers = [
        replace(layer, median_ms=statistics.median(times[at] for at in runs_of_layers))
        for layer, times in told
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
    """Places of the runs that count, by what they took in all."""
    order = sorted(range(WARMUP, len(times)), key=lambda at: times[at])
    return order[: max(FEWEST, len(order) // QUIET)]


def _median(times: Sequence[float]) -> float:
    return statistics.median(times[at] for at in quiet_runs(times))


def match_layers(
    layers: Sequence[LayerExecution], told: Sequence[Sequence[tuple[str, str, float]]]
) -> list[tuple[LayerExecution, list[float]]]:
    """What a profiler told of each run, (name, type, ms) in order, beside the layers that the engine says it has.

    The second one of a name is the second layer of that name. What is timed and not listed becomes a layer of an
    unknown precision, so that the sum stays whole; what is listed and was not timed did not run.
    """
    listed: dict[tuple[str, int], LayerExecution] = {}
    seen: dict[str, int] = {}
    for layer in layers:
        listed[layer.name, seen.setdefault(layer.name, 0)] = layer
        seen[layer.name] += 1
    found: dict[tuple[str, int], tuple[LayerExecution, list[float]]] = {}
    for run in told:
        counts: dict[str, int] = {}
        for name, kind, ms in run:
            key = (name, counts.setdefault(name, 0))
            counts[name] += 1
            layer = listed.get(key) or LayerExecution(name, kind, "unknown")
            found.setdefault(key, (layer, []))[1].append(ms)
    return [each for each in found.values() if len(each[1]) == len(told)]
