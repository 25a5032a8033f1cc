"""Resident memory over a run: its course, its peak and in which stage, and whether it grows."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.jobs.profile.base import NotHereError, Occasion, written_ns
from detector.timeline import KINDS, WORK

ORDER = 80
WHAT = "one more run, its memory sampled"
EVERY_S = 0.02
KEPT = 2000  # samples in the session; a longer run keeps every second, third, ... one
MB = 10**6  # bytes, as compare counts them
SETTLED = 0.5  # the first half of a run fills pools and caches; growth is judged on the second


def run(occasion: Occasion) -> dict[str, Any]:
    with Sampler() as sampler:
        session = occasion.again()
    times, rss = sampler.series()
    spans = session.spans
    facts = growth(times, rss, written_ns(spans))
    return {
        **facts,
        "start_mb": float(rss[0]) / MB,
        "peak_mb": float(rss.max()) / MB,
        "peak_by_stage_mb": peak_by_stage(times, rss, spans),
        "samples": [
            {"t_s": (t - int(times[0])) / 1e9, "rss_mb": value / MB}
            for t, value in thinned(times, rss)
        ],
        "gpu": gpu_memory(),
        "slowdown": occasion.slowdown(session),
    }


class Sampler:
    """Reads the resident set every 20 ms from a thread of its own."""

    def __init__(self) -> None:
        try:
            import psutil
        except ImportError:
            raise NotHereError(
                "psutil is not installed; install it with: pip install 'detect-video[profile]'"
            ) from None
        self._process = psutil.Process()
        self._rows: list[tuple[int, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="detect-video memory", daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        self._rows.append((time.perf_counter_ns(), self._process.memory_info().rss))

    def __enter__(self) -> Sampler:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def series(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nanoseconds of the spans' clock, and bytes."""
        rows = np.array(self._rows, np.int64)
        return rows[:, 0], rows[:, 1]


def growth(
    times: NDArray[np.int64], rss: NDArray[np.int64], written: NDArray[np.int64]
) -> dict[str, Any]:
    """``slope_mb_per_1000_frames``: least squares over the second half of the frames; null below 100 of them."""
    if len(written) < 100:
        return {
            "slope_mb_per_1000_frames": None,
            "slope_reason": f"{len(written)} frames are too few: 100 are needed",
        }
    settled = written[int(len(written) * SETTLED)]
    inside = (times >= settled) & (times <= written[-1])
    if inside.sum() < 5:
        return {
            "slope_mb_per_1000_frames": None,
            "slope_reason": "the run was too short for five samples",
        }
    frames = np.searchsorted(written, times[inside])
    slope = float(np.polyfit(frames, rss[inside] / MB, 1)[0]) if np.ptp(frames) else 0.0
    return {"slope_mb_per_1000_frames": slope * 1000, "slope_reason": None}


def peak_by_stage(
    times: NDArray[np.int64], rss: NDArray[np.int64], spans: dict[str, NDArray[Any]]
) -> dict[str, float | None]:
    """The highest sample while a stage was running; null where none fell into it. Stages run side by side: a stage at
    the peak need not be its cause."""
    found: dict[str, float | None] = {}
    for code, name in enumerate(spans["stage_names"].tolist()):
        picked = (spans["kind"] == KINDS.index(WORK)) & (spans["stage"] == code)
        if not picked.any():
            continue
        order = np.argsort(spans["start_ns"][picked])
        starts, ends = (
            spans["start_ns"][picked][order],
            np.maximum.accumulate(spans["end_ns"][picked][order]),
        )
        at = np.searchsorted(starts, times, side="right") - 1
        inside = (at >= 0) & (times <= ends[np.maximum(at, 0)])
        found[name] = float(rss[inside].max()) / MB if inside.any() else None
    return found


def thinned(times: NDArray[np.int64], values: NDArray[np.int64]) -> list[tuple[int, int]]:
    step = -(-len(times) // KEPT)
    return list(zip(times[::step].tolist(), values[::step].tolist(), strict=True))


def gpu_memory() -> dict[str, Any]:
    """What NVML and torch say of the GPU's memory now; or why they do not."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no library, no driver: both are ordinary here
        return {
            "available": False,
            "reason": f"NVML: {' '.join(str(error).split()) or type(error).__name__}",
        }
    used = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used
    return {"available": True, "used_mb": used / MB, **_torch_memory()}


def _torch_memory() -> dict[str, float]:
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    return {
        "torch_peak_allocated_mb": torch.cuda.max_memory_allocated() / MB,
        "torch_peak_reserved_mb": torch.cuda.max_memory_reserved() / MB,
    }
