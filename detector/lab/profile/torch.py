"""Run torch's profiler over a few steady frames: operators by name and by shape, and a trace."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from detector.core import engines
from detector.core.engines.base import NONE
from detector.core.errors.machine import NotHereError
from detector.core.run.loading import LoadedModel
from detector.lab.analysis.layers import TOLERANCE
from detector.lab.profile.base import Occasion, Pass
from detector.lab.profile.batches import Batch, open_with_batches, time_batches
from detector.lab.profile.layers import ALONE
from detector.lab.session.network import Operator, TorchFacts

WARMUP = 3  # batches before the profiler starts
BATCHES = 5  # batches under the profiler; few, since each adds hundreds of events to the trace
TOP = 40
MB = 10**6  # bytes
TRACE = "passes/torch_trace.json.gz"


def profile_operators(occasion: Occasion) -> TorchFacts:
    used = occasion.plain.document.engine
    if used != "torch":
        raise NotHereError(f"the network ran on {used}; torch's profiler needs --engine torch")
    machine, batches = open_with_batches(occasion)
    from torch.profiler import ProfilerActivity

    device = machine.engine.device
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else [])]
    # CUDA graphs hide operators from the profiler.
    own = {"graphs": "0"} if device != "cpu" else {}
    profiler, plain, profiled = record_batches(
        machine,
        batches,
        BATCHES,
        own=own,
        activities=activities,
        record_shapes=True,
        profile_memory=True,
    )
    with occasion.session.whole(TRACE) as temporary:
        profiler.export_chrome_trace(str(temporary))
    batch = machine.network.batch
    in_graphs = getattr(machine.engine, "captured", False)
    frames, pass_ms = BATCHES * batch, mean(profiled)
    averages = profiler.key_averages()
    by_name = operator_rows(averages, frames)
    by_shape = operator_rows(profiler.key_averages(group_by_input_shape=True), frames)
    notes = (
        explain_operators(sum(row.self_ms for row in by_name), pass_ms / batch),
        "the run launched CUDA graphs, which hide operators; here each operator ran separately"
        if in_graphs
        else None,
    )
    return TorchFacts(
        rows=by_name[:TOP],
        by_shape=by_shape[:TOP],
        self_ms=sum(_self_us(one) for one in averages) / 1e3 / frames,
        trace=TRACE,
        frames=frames,
        batch=batch,
        device=device,
        forward_ms=mean(plain),
        profiled_ms=pass_ms,
        flag="; ".join(filter(None, notes)) or None,
        slowdown=min(profiled) / min(plain),
    )


def record_batches(
    machine: LoadedModel,
    batches: Sequence[Batch],
    count: int,
    own: Mapping[str, str] = NONE,
    **options: Any,
) -> tuple[Any, list[float], list[float]]:
    """Return the profiler after ``count`` batches, and the ms per batch without and with profiling.
    ``own``: further options of the engine. ``options``: options of the profiler."""
    from torch.profiler import profile

    # Keep the profiler of torch 2.13 from printing two lines each time. It still raises errors.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    assert machine.options is not None
    own = {**machine.options.own, **own}
    alone = replace(machine.options, requests=1, concurrency=1, own=own)
    with engines.open(machine.engine.name, machine.network, alone) as engine:
        request = engine.requests[0]
        list(time_batches(request, batches, WARMUP))
        plain = list(time_batches(request, batches, count))
        with profile(acc_events=True, **options) as profiler:
            profiled = list(time_batches(request, batches, count))
        # Time half of the plain batches now, so that a slow second affects only one half.
        plain += time_batches(request, batches, count)
    return profiler, plain, profiled


def operator_rows(events: Sequence[Any], frames: int) -> list[Operator]:
    """Convert torch's averages to rows in ms per frame, the longest self time first."""
    own_ms = [_self_us(one) / 1e3 / frames for one in events]
    total = sum(own_ms)
    rows = [
        Operator(
            name=str(event.key),
            shapes=str(shapes) if (shapes := getattr(event, "input_shapes", None)) else "",
            calls=event.count / frames,
            self_ms=event.self_cpu_time_total / 1e3 / frames,
            total_ms=event.cpu_time_total / 1e3 / frames,
            device_ms=_device_us(event) / 1e3 / frames,
            device_total_ms=float(getattr(event, "device_time_total", 0)) / 1e3 / frames,
            share=own / total if total else 0.0,
            self_cpu_mb=event.self_cpu_memory_usage / MB / frames,
            cpu_mb=event.cpu_memory_usage / MB / frames,
            self_device_mb=getattr(event, "self_device_memory_usage", 0) / MB / frames,
            device_mb=getattr(event, "device_memory_usage", 0) / MB / frames,
        )
        for event, own in zip(events, own_ms, strict=True)
    ]
    return sorted(rows, key=lambda row: -row.share)


def explain_operators(self_ms: float, pass_ms: float) -> str | None:
    """Explain why the sum of self CPU times differs from the pass's time; None if nearly equal."""
    off = self_ms / pass_ms - 1 if pass_ms else 0.0
    if abs(off) <= TOLERANCE:
        return None
    why = (
        "the profiler, and Python code between the operators, took the rest"
        if off < 0
        else "operators ran in parallel threads"
    )
    return (
        f"the operators' self times on the CPU add up to {self_ms:.3f} ms a frame, "
        f"{off:+.1%} off the {pass_ms:.3f} ms of a profiled pass: {why}"
    )


def _self_us(event: Any) -> float:
    """Return the self time in us; 0 for an annotation on a device, since its kernels have rows."""
    if event.device_type.name == "CPU":
        return float(event.self_cpu_time_total)
    marked = getattr(event, "is_user_annotation", False)  # missing in old versions of torch
    return 0.0 if marked else _device_us(event)


def _device_us(event: Any) -> float:
    return float(getattr(event, "self_device_time_total", 0))


PASS = Pass(
    order=45,
    what="torch.profiler's operators and a trace",
    facts=TorchFacts,
    run=profile_operators,
    varies=ALONE,
)
