"""Test the memory figures of a live run, on a fake clock."""

import mmap
import os

import pytest

from detector.core.errors.machine import resident_bytes
from detector.live.memory import MB, MINUTE, MemoryWatch


class FakeProcess:
    def __init__(self) -> None:
        self.now, self.resident = 5 * MINUTE, 100 * MB
        self.watch = MemoryWatch(lambda: self.now, lambda: self.resident)

    def run_minutes(self, count: int) -> None:
        for _ in range(count * 6):
            self.watch.sample()
            self.now += MINUTE // 6


def test_figure_of_a_minute_is_the_mean_of_its_samples():
    process = FakeProcess()
    for mb in (100, 104, 108):
        process.resident = mb * MB
        process.watch.sample()
    memory = process.watch.figures()
    assert [tuple(minute) for minute in memory.minutes] == [(0, 104.0)]
    assert (memory.start_mb, memory.end_mb, memory.peak_mb) == (100, 108, 108)


def test_next_day_has_its_own_figures():
    process = FakeProcess()
    process.resident = 300 * MB
    process.run_minutes(3)
    process.watch.begin_day()
    process.resident = 200 * MB
    process.run_minutes(2)
    memory = process.watch.figures()
    assert [minute.minute for minute in memory.minutes] == [3, 4]
    assert (memory.start_mb, memory.peak_mb) == (200, 200)


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
