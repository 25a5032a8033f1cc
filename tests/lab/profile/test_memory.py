"""Growth, peaks and thinning of memory samples."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core.jobs.doctor.nvml import NvmlGpu
from detector.lab.profile.base import PassSampler
from detector.lab.profile.memory import MAX_SAMPLES, MB, add_encoder, fit_growth, gpu_memory, thin
from tests.fakes.install import install_fake_tensorrt

MS = 1_000_000


def test_slope_shows_a_leak_but_not_an_initial_rise():
    """A frame takes 10 ms. The leak is half a megabyte per frame, starting from 100 MB."""
    written = np.arange(1, 1001) * 10 * MS
    times = np.arange(0, 10_000, 20) * MS
    leak = (100 * MB + 0.5 * MB * times / (10 * MS)).astype(np.int64)
    assert fit_growth(times, leak, written)[0] == pytest.approx(500, rel=0.01)
    full = np.minimum(100 * MB + times // 10, 200 * MB)  # memory grows for a tenth of the run
    assert fit_growth(times, full, written)[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("frames", "samples", "word"), [(99, 100, "too few"), (200, 3, "too short")]
)
def test_missing_slope_has_a_reason(frames, samples, word):
    written = np.arange(1, frames + 1) * 10 * MS
    times = np.linspace(0, written[-1], samples).astype(np.int64)
    slope, reason = fit_growth(times, np.full(samples, MB), written)
    assert slope is None
    assert word in reason


def test_parts_of_memory_add_up_to_the_peak():
    parts = add_encoder({"model": 30.0, "rest": 15.0}, {"model": 31.0, "rest": 39.0})
    assert parts == {"model": 30.0, "rest": 15.0, "drawing and encoder": 25.0}


def test_long_series_of_samples_is_shortened():
    times = np.arange(10 * MAX_SAMPLES + 3)
    assert len(thin(times, times)) <= MAX_SAMPLES
    assert thin(times[:5], times[:5]) == [(n, n) for n in range(5)]


def install_nvml(monkeypatch, used, own_bytes=None):
    """Fake two cards, both visible to CUDA. ``used``: bytes in use at each reading."""
    readings = iter(used)

    def running(handle):
        if own_bytes is None:
            raise RuntimeError("Not Supported")
        return [
            SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=999),
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=own_bytes),
        ]

    module = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda at: f"number {at}",
        nvmlDeviceGetHandleByPciBusId=lambda place: place,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=next(readings), total=80 * MB),
        nvmlDeviceGetComputeRunningProcesses=running,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)


@pytest.mark.parametrize(
    ("device", "handle"),
    [("cuda", "0000:3B:00.0"), ("cuda:1", "0000:3C:00.0"), ("cpu", "number 0")],
)
def test_gpu_of_the_run_is_measured(monkeypatch, device, handle):
    """GPUs are matched by bus address, since NVML and CUDA number them differently."""
    install_fake_tensorrt(monkeypatch, gpus=(("Fake L4", (8, 9)), ("Fake L4", (8, 9))))
    install_nvml(monkeypatch, [])
    assert NvmlGpu(device)._handle == handle


@pytest.mark.parametrize("own_bytes", [None, 7 * MB])
def test_gpu_memory_is_the_maximum_of_the_run(monkeypatch, own_bytes):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    install_nvml(monkeypatch, [10 * MB, 30 * MB, 20 * MB], own_bytes)
    sampler = PassSampler(NvmlGpu().memory, 1000, "GPU memory")
    for _ in range(3):
        sampler._sample()
    facts = gpu_memory(sampler, None)
    assert (facts.used_mb, facts.total_mb) == (30, 80)
    assert facts.process_mb == (None if own_bytes is None else 7)
    assert gpu_memory(sampler, "NVML: no library").reason == "NVML: no library"
