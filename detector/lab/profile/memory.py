"""Measure resident memory over a run: its curve, its growth, and the parts of its peak."""

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
from detector.lab.profile.base import Occasion, Pass, PassSampler, find_frame_ends, output_within
from detector.lab.profile.memory_parts import MB, measure_parts
from detector.lab.session.passes import GpuMemory, MemoryFacts, MemorySample

EVERY_S = 0.02
GPU_EVERY_S = 0.05  # NVML is slower than /proc
PARTS_FRAMES = 100  # frames of the runs that measure parts; enough to reach the peak
MAX_SAMPLES = 2000  # samples in the session; a longer run keeps every second, third, ... sample
SETTLED = 0.5  # growth is measured after this share of the frames, when pools and caches are full


def sample_memory(occasion: Occasion) -> MemoryFacts:
    gpu, missing = _open_gpu(occasion.config.runtime.device)
    # Sample the GPU during the run, since the engine frees its memory at the end.
    with (
        PassSampler(lambda: resident_bytes() or 0, EVERY_S, "memory") as sampler,
        PassSampler(gpu, GPU_EVERY_S, "GPU memory") as watch,
    ):
        session = occasion.rerun()
    times, rss = np.array(sampler.samples(), np.int64).T
    slope, reason = fit_growth(times, rss, find_frame_ends(session.spans))
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
    times: NDArray[np.int64], rss: NDArray[np.int64], frame_ends: NDArray[np.int64]
) -> tuple[float | None, str | None]:
    """Return (growth, None) or (None, reason). The growth is a least-squares fit in MB per 1000
    frames over the second half of the run. ``frame_ends``: end times of the frames [F]."""
    if len(frame_ends) < 100:
        return None, f"{counted(len(frame_ends), 'frame', 'is')} too few, 100 are needed"
    settled = frame_ends[int(len(frame_ends) * SETTLED)]
    inside = (times >= settled) & (times <= frame_ends[-1])
    if inside.sum() < 5:
        return None, "the run was too short for five samples"
    frames = np.searchsorted(frame_ends, times[inside])
    slope = float(np.polyfit(frames, rss[inside] / MB, 1)[0]) if np.ptp(frames) else 0.0
    return slope * 1000, None


def find_parts(occasion: Occasion) -> dict[str, float]:
    """Return the MB that each part adds to the peak of a run."""
    config, document = occasion.config, occasion.plain.document
    assert document.video, "one source was opened"
    assert document.video.pixels
    frames = min(occasion.frames, PARTS_FRAMES)
    pixels, filled = document.video.pixels.partition(":")[0], 2 * document.loop[0]["images"]
    measure = partial(measure_parts, occasion.source, pixels, min(frames, filled))
    with temporary_folder("detect-video-pass-") as folder:
        output = output_within(folder, config.output)
        config = replace(config, output=output, input=replace(config.input, frames=frames))
        without_video = replace(config, output=replace(output, no_video=True))
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            return add_encoder(*pool.map(measure, (without_video, config)))


def add_encoder(without_video: dict[str, float], with_video: dict[str, float]) -> dict[str, float]:
    """Return the parts of the run without video, plus one part: what writing the video adds."""
    encoder_mb = sum(with_video.values()) - sum(without_video.values())
    return {**without_video, "drawing and encoder": encoder_mb}


def thin(times: NDArray[np.int64], values: NDArray[np.int64]) -> list[tuple[int, int]]:
    step = -(-len(times) // MAX_SAMPLES)
    return list(zip(times[::step].tolist(), values[::step].tolist(), strict=True))


def _open_gpu(device: str) -> tuple[Callable[[], GpuBytes | None], str | None]:
    """Return a function that reads the GPU's memory. If it cannot, also return the reason."""
    try:
        return NvmlGpu(device).memory, None
    except NotHereError as error:
        return lambda: None, str(error)


def gpu_memory(watch: PassSampler[GpuBytes | None], missing: str | None) -> GpuMemory:
    """Return the highest use that NVML and torch report, or the reason why NVML reports none."""
    if missing is not None:
        return GpuMemory(available=False, reason=missing)
    try:
        uses = [one for _, one in watch.samples() if one is not None]
    except NotHereError as error:
        return GpuMemory(available=False, reason=str(error))
    own = [one.process for one in uses if one.process is not None]
    torch = sys.modules.get("torch")  # if the run did not import torch, torch holds no memory
    cuda = None if torch is None or not torch.cuda.is_available() else torch.cuda
    return GpuMemory(
        available=True,
        used_mb=max(one.used for one in uses) / MB,
        process_mb=max(own) / MB if own else None,
        total_mb=uses[-1].total / MB,
        torch_peak_allocated_mb=None if cuda is None else cuda.max_memory_allocated() / MB,
        torch_peak_reserved_mb=None if cuda is None else cuda.max_memory_reserved() / MB,
    )


PASS = Pass(order=80, what="memory use, in three more runs", facts=MemoryFacts, run=sample_memory)
