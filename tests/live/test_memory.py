"""Test the memory figures of a live run: minutes, slopes with intervals, days; on a fake clock."""

from __future__ import annotations

import mmap
import os
import random
from statistics import fmean

import pytest

from detector.core.analysis.summary import live_memory_text
from detector.core.errors.machine import resident_bytes
from detector.live.memory import MB, MINUTE, MemoryWatch, fit_slope


class FakeProcess:
    def __init__(self) -> None:
        self.now, self.resident = 5 * MINUTE, 100 * MB
        self.watch = MemoryWatch(lambda: self.now, lambda: self.resident)

    def run_minutes(self, count: int, growth_mb: float = 0.0, samples: int = 6) -> None:
        for _ in range(count * samples):
            self.watch.sample()
            self.now += MINUTE // samples
            self.resident += int(growth_mb * MB / samples)


def test_minute_is_the_mean_of_its_samples():
    process = FakeProcess()
    for mb in (100, 104, 108):
        process.resident = mb * MB
        process.watch.sample()
    memory = process.watch.figures()
    assert [tuple(minute) for minute in memory.minutes] == [(0, 104.0)]
    assert (memory.start_mb, memory.end_mb, memory.peak_mb) == (100, 108, 108)


def test_slope_is_the_growth_after_ten_minutes():
    process = FakeProcess()
    process.run_minutes(10, growth_mb=50)  # settling
    process.run_minutes(50, growth_mb=0.1)
    memory = process.watch.figures()
    assert memory.slope_mb_per_hour == pytest.approx(6, rel=1e-3)
    assert memory.slope_low <= memory.slope_mb_per_hour <= memory.slope_high
    assert memory.slope_reason is None
    assert "+6.0 MB an hour, 95% interval [+6.0 .. +6.0]" in live_memory_text(memory)


def test_interval_of_noise_without_growth_contains_zero():
    process, draw = FakeProcess(), random.Random(7)
    for _ in range(360):
        process.resident = int((100 + draw.random()) * MB)
        process.run_minutes(1, samples=1)
    memory = process.watch.figures()
    assert memory.slope_low < 0 < memory.slope_high
    assert len(memory.minutes) == 360


def test_short_run_explains_the_missing_memory_slope():
    process = FakeProcess()
    process.run_minutes(19)
    memory = process.watch.figures()
    assert memory.slope_mb_per_hour is None
    assert "10 minutes after" in live_memory_text(memory)
    process.run_minutes(1)
    assert process.watch.figures().slope_mb_per_hour == pytest.approx(0)


def test_next_day_has_own_figures_and_a_slope_from_its_start():
    process = FakeProcess()
    process.resident = 300 * MB
    process.run_minutes(30)
    process.watch.begin_day()
    process.resident = 200 * MB
    process.run_minutes(10)
    memory = process.watch.figures()
    assert [minute.minute for minute in memory.minutes] == list(range(30, 40))
    assert (memory.start_mb, memory.peak_mb) == (200, 200)
    assert memory.slope_mb_per_hour == pytest.approx(0)


def test_unknown_memory_gives_no_figures(tmp_path):
    watch = MemoryWatch(lambda: 0, lambda: resident_bytes(tmp_path))
    watch.sample()
    assert watch.figures() is None


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
def test_touched_pages_count_as_resident():
    with mmap.mmap(-1, 64 * MB) as pages:  # pages that are not yet resident
        before = resident_bytes()
        for offset in range(0, len(pages), mmap.PAGESIZE):
            pages[offset] = 1
        assert resident_bytes() - before > 32 * MB


def test_slope_and_interval_follow_simple_regression():
    # y = x + e with e = +1, -1, ...; expected values from the formulas of simple regression.
    xs = [float(x) for x in range(10)]
    ys = [x + (1 if i % 2 else -1) for i, x in enumerate(xs)]
    slope, half = fit_slope(xs, ys)
    middle = fmean(xs)
    spread = sum((x - middle) ** 2 for x in xs)
    rest = sum((y - fmean(ys) - slope * (x - middle)) ** 2 for x, y in zip(xs, ys, strict=True))
    assert slope == pytest.approx(1 + 5 / spread)
    assert half == pytest.approx(2.306004 * (rest / 8 / spread) ** 0.5, rel=1e-3)
