"""torch's own profiler over a few steady frames: operators by their own time, by the shapes they got, and a trace."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector import engines
from detector.engines.base import Request
from detector.jobs.profile.base import NotHereError, Occasion
from detector.jobs.profile.layers import opened

ORDER = 45
WHAT = "torch.profiler's operators and a trace"
WARMUP, FRAMES = (
    3,
    5,
)  # batches before, and under the profiler: a trace has hundreds of events for each
TOP = 40
TRACE = "passes/torch_trace.json.gz"


def run(occasion: Occasion) -> dict[str, Any]:
    used = occasion.plain.document["engine"]
    if used != "torch":
        raise NotHereError(f"the network ran on {used}; torch's profiler sees --engine torch")
    machine, slots = opened(occasion)
    assert machine.options is not None
    with engines.open(
        "torch", machine.network, replace(machine.options, requests=1, concurrency=1)
    ) as engine:
        request = engine.requests[0]
        list(timed_batches(request, slots, WARMUP))
        plain = list(timed_batches(request, slots, FRAMES))
        found, profiled = _profiled(occasion, request, slots, engine.device)
        plain += timed_batches(
            request, slots, FRAMES
        )  # before and after: a slow second falls on one of them
    return found | {
        "frames": FRAMES,
        "device": engine.device,
        "forward_ms": min(plain),  # the fastest of each: so few have no middle worth the name
        "profiled_ms": min(profiled),
        "slowdown": min(profiled) / min(plain),
    }


def timed_batches(
    request: Request, slots: Sequence[NDArray[np.uint8]], count: int
) -> Iterator[float]:
    """Milliseconds of each of ``count`` forward passes."""
    for slot in islice(cycle(slots), count):
        np.copyto(request.slot, slot)
        start = time.perf_counter()
        request.infer(len(slot))
        yield (time.perf_counter() - start) * 1e3


def _profiled(
    occasion: Occasion, request: Request, slots: Sequence[NDArray[np.uint8]], device: str
) -> tuple[dict[str, Any], list[float]]:
    quieten()
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else [])]
    with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        times = list(timed_batches(request, slots, FRAMES))
    path = occasion.session.path(TRACE)
    path.parent.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(path))
    by_operator = operator_rows(profiler.key_averages(), FRAMES)
    by_shape = operator_rows(profiler.key_averages(group_by_input_shape=True), FRAMES)
    self_ms = sum(row["self_ms"] + row["device_ms"] for row in by_operator)
    return {
        "rows": by_operator[:TOP],
        "by_shape": by_shape[:TOP],
        "self_ms": self_ms,
        "trace": TRACE,
    }, times


def quieten() -> None:
    """torch 2.13's profiler writes two lines of its own to stderr each time; what fails in it is raised anyway."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def operator_rows(events: Sequence[Any], frames: int) -> list[dict[str, Any]]:
    """torch's averages as plain values, ms a frame, by what an operator takes itself; those that it calls apart."""
    rows = [
        {
            "name": str(event.key),
            "shapes": str(shapes) if (shapes := getattr(event, "input_shapes", None)) else "",
            "calls": event.count / frames,
            "self_ms": event.self_cpu_time_total / 1e3 / frames,
            "total_ms": event.cpu_time_total / 1e3 / frames,
            "device_ms": getattr(event, "self_device_time_total", 0) / 1e3 / frames,
        }
        for event in events
    ]
    total = sum(row["self_ms"] + row["device_ms"] for row in rows)
    for row in rows:
        row["share"] = (row["self_ms"] + row["device_ms"]) / total if total else 0.0
    return sorted(rows, key=lambda row: -float(row["share"]))
