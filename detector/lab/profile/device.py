"""Measure how long a GPU is busy while the network runs (with Kineto), and why it is idle."""

from __future__ import annotations

import re

from detector.core.errors.machine import NotHereError
from detector.lab.analysis.layers import Interval, device_facts
from detector.lab.profile.base import Occasion, Pass
from detector.lab.profile.batches import open_with_batches
from detector.lab.profile.layers import ALONE
from detector.lab.profile.torch import TOP, operator_rows, record_batches
from detector.lab.session.network import DeviceFacts

BATCHES = 10
WAITS = re.compile(r"Synchronize\b")  # cudaEventSynchronize, cuStreamSynchronize, ...


def watch_gpu(occasion: Occasion) -> DeviceFacts:
    machine, batches = open_with_batches(occasion)
    if not machine.engine.device.startswith("cuda"):
        raise NotHereError(f"the network ran on {machine.engine.device}, not on an NVIDIA GPU")
    try:
        import torch
    except ImportError:
        raise NotHereError("recording kernels needs torch, which is not installed") from None
    if not torch.cuda.is_available():
        raise NotHereError(
            f"recording kernels needs CUDA, which torch {torch.__version__} does not have here"
        )
    profiler, plain, profiled = record_batches(machine, batches, BATCHES)
    kernels: list[Interval] = []
    host: list[Interval] = []
    waits: list[Interval] = []
    for event in profiler.events():
        on_gpu = event.device_type != torch.autograd.DeviceType.CPU
        intervals = kernels if on_gpu else waits if WAITS.search(event.name) else host
        intervals.append((event.time_range.start / 1e3, event.time_range.end / 1e3))
    if not kernels:
        raise NotHereError(
            "torch.profiler recorded no kernels (CUPTI may need permission to read counters)"
        )
    return device_facts(
        kernels,
        host,
        device=machine.engine.device,
        batches=BATCHES,
        rows=operator_rows(profiler.key_averages(), BATCHES)[:TOP],
        slowdown=min(profiled) / min(plain),
        waits=waits,
    )


PASS = Pass(
    order=46, what="a GPU's busy and idle time", facts=DeviceFacts, run=watch_gpu, varies=ALONE
)
