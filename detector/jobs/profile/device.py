"""What a GPU does while the network runs: how long it is busy, and what it is idle for; by kineto's record of a few
batches, whichever engine runs them. Not run on a GPU yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from detector import engines
from detector.analysis.layers import device_facts
from detector.jobs.profile.base import NotHereError, Occasion
from detector.jobs.profile.layers import opened
from detector.jobs.profile.torch import TOP, operator_rows, quieten, timed_batches

ORDER = 46
WHAT = "a GPU's busy and idle time"
WARMUP, BATCHES = 3, 10


def run(occasion: Occasion) -> dict[str, Any]:
    machine, slots = opened(occasion)
    if machine.engine.device == "cpu":
        raise NotHereError("the network ran on the CPU; there is no GPU whose time could be told")
    try:
        import torch
    except ImportError:
        raise NotHereError(
            "kernels are recorded by torch.profiler, and torch is not installed"
        ) from None
    if not torch.cuda.is_available():
        raise NotHereError(
            f"kernels are recorded by torch.profiler, and torch {torch.__version__} has no CUDA here"
        )
    assert machine.options is not None
    alone = replace(machine.options, requests=1, concurrency=1)
    with engines.open(machine.engine.name, machine.network, alone) as engine:
        request = engine.requests[0]
        list(timed_batches(request, slots, WARMUP))
        plain = list(timed_batches(request, slots, BATCHES))
        quieten()
        with torch.profiler.profile(acc_events=True) as profiler:
            profiled = list(timed_batches(request, slots, BATCHES))
        plain += timed_batches(
            request, slots, BATCHES
        )  # before and after: a slow second falls on one of them
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for event in profiler.events():
        on_gpu = event.device_type != torch.autograd.DeviceType.CPU
        times[on_gpu].append((event.time_range.start / 1e3, event.time_range.end / 1e3))
    if not times[True]:
        raise NotHereError(
            "torch.profiler saw no kernel (CUPTI may need the right to read counters)"
        )
    return {
        "device": machine.engine.device,
        "batches": BATCHES,
        **device_facts(times[True], times[False]),
        "rows": operator_rows(profiler.key_averages(), BATCHES)[:TOP],
        "slowdown": min(profiled) / min(plain),
    }
