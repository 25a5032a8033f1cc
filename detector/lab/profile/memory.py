"""Resident memory over a run: its curve, its parts, and whether it grows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from detector.core.errors.machine import NotHereError, resident_bytes
from detector.core.errors.text import counted
from detector.core.errors.writing import temporary_folder
from detector.core.jobs.doctor.nvml import GpuBytes, NvmlGpu
from detector.lab.profile.base import Occasion, Pass, PassSampler, done_ns, output_within
from detector.lab.profile.memory_parts import MB, measure_parts
from detector.lab.session.passes import GpuMemory, MemoryFacts, MemorySample

EVERY_S = 0.02
GPU_EVERY_S = 0.05  # a driver answers slower than the kernel
PARTS_FRAMES = 100  # of the runs that measure parts, which have reached their peak by then
KEPT = 2000  # samples in the session; a longer run keeps every second, third, ... one
SETTLED = 0.5  # the first half of a run fills pools and caches; growth is measured on the second


def sample_memory(occasion: Occasion) -> MemoryFacts:
    gpu, missing = _open_gpu(occasion.config.runtime.device)
    # The engine closes within the run: what it holds is seen while it holds it.
    with (
        PassSampler(lambda: resident_bytes() or 0, EVERY_S, "memory") as sampler,
        PassSampler(gpu, GPU_EVERY_S, "GPU memory") as watch,
    ):
        session = occasion.again()
    times, rss = np.array(sampler.samples(), np.int64).T
    slope, reason = fit_growth(times, rss, done_ns(session.spans))
    start = int(times[0])
    return MemoryFacts(
        slope_mb_per_1000_frames=slope,
        slope_reason=reason,
        start_mb=float(rss[0]) / MB,
        peak_mb=float(rss.max()) / MB,
        parts_mb=find_parts(occasion),
        samples=[MemorySample((t - start) / 1e9, value / MB) for t, value in thin(times, rss)],
        gpu=gpu_memory(watch, missing),
        slowdown=occasion.slowdown(session),
    )


def fit_growth(
    times: NDArray[np.int64], rss: NDArray[np.int64], done: NDArray[np.int64]
) -> tuple[float | None, str | None]:
    """Least-squares MB per 1000 frames of the second half, or why not. ``done`` [F]: frame ends."""
    if len(done) < 100:
        return None, f"{counted(len(done), 'frame', 'is')} too few, 100 are needed"
    settled = done[int(len(done) * SETTLED)]
    inside = (times >= settled) & (times <= done[-1])
    if inside.sum() < 5:
        return None, "the run was too short for five samples"
    frames = np.searchsorted(done, times[inside])
    slope = float(np.polyfit(frames, rss[inside] / MB, 1)[0]) if np.ptp(frames) else 0.0
    return slope * 1000, None


def find_parts(occasion: Occasion) -> dict[str, float]:
    """Return the MB that each part alone adds to the peak of a run."""
    config, document = occasion.config, occasion.plain.document
    assert document.video, "one source was opened"
    assert document.video.pixels
    frames = min(occasion.frames, PARTS_FRAMES)
    pixels, filled = document.video.pixels.partition(":")[0], 2 * document.loop[0]["images"]
    measure = partial(measure_parts, occasion.source, pixels, min(frames, filled))
    with temporary_folder("detect-video-pass-") as folder:
        output = output_within(folder, config.output)
        config = replace(config, output=output, input=replace(config.input, frames=frames))
        bare = replace(config, output=replace(output, no_video=True))
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            return add_encoder(*pool.map(measure, (bare, config)))


def add_encoder(bare: dict[str, float], whole: dict[str, float]) -> dict[str, float]:
    """The parts of a run without pictures, and what a run with them takes beyond it."""
    return {**bare, "drawing and encoder": sum(whole.values()) - sum(bare.values())}


def thin(times: NDArray[np.int64], values: NDArray[np.int64]) -> list[tuple[int, int]]:
    step = -(-len(times) // KEPT)
    return list(zip(times[::step].tolist(), values[::step].tolist(), strict=True))


def _open_gpu(device: str) -> tuple[Callable[[], GpuBytes | None], str | None]:
    """Return the reader of the GPU's memory, or one that reads nothing and the reason."""
    try:
        return NvmlGpu(device).memory, None
    except NotHereError as error:
        return lambda: None, str(error)


def gpu_memory(watch: PassSampler[GpuBytes | None], missing: str | None) -> GpuMemory:
    """Return the most that NVML and torch saw in use, or the reason why NVML saw nothing."""
    if missing is not None:
        return GpuMemory(available=False, reason=missing)
    try:
        seen = [one for _, one in watch.samples() if one is not None]
    except NotHereError as error:
        return GpuMemory(available=False, reason=str(error))
    mine = [one.process for one in seen if one.process is not None]
    torch = sys.modules.get("torch")  # not imported for this: then it holds no memory either
    cuda = None if torch is None or not torch.cuda.is_available() else torch.cuda
    return GpuMemory(
        available=True,
        used_mb=max(one.used for one in seen) / MB,
        process_mb=max(mine) / MB if mine else None,
        total_mb=seen[-1].total / MB,
        torch_peak_allocated_mb=None if cuda is None else cuda.max_memory_allocated() / MB,
        torch_peak_reserved_mb=None if cuda is None else cuda.max_memory_reserved() / MB,
    )


PASS = Pass(order=80, what="memory use, in three more runs", facts=MemoryFacts, run=sample_memory)
