"""Measure the bandwidth at which threads read and write working sets in caches and memory.

We run two kernels, the maximum of an array (numpy) and a copy (C library), and keep the rate of the
faster one. A timed pass goes over a small set many times.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from detector.core.errors.machine import machine_bytes
from detector.lab.session.network import Bandwidth, CacheLevel

SMALLEST, LARGEST = 16 << 10, 1 << 30  # bytes of the working sets of all threads together
# CPU seconds per core for each size, kernel and number of threads: about 3 s in all for one thread
EACH_S = 0.04
LOAD_FACTOR = 4  # if other programs run too, the wall time is at most this many times EACH_S
FEWEST = 5  # passes of each kernel and size
PASS_BYTES = 8 << 20  # a pass moves at least this, in about 50 us (a thousand ticks of the clock)
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
MEMORY_PARTS = 8  # the largest set takes at most the machine's memory divided by this


def measure(threads: int) -> list[Bandwidth]:
    counts = sorted(
        {*(1 << at for at in range(threads.bit_length()) if 1 << at < threads), threads}
    )
    return [_measure_size(size, count) for count in counts for size in list_sizes(LARGEST)]


def list_sizes(largest: int) -> list[int]:
    most = max(SMALLEST, min(largest, machine_bytes() // MEMORY_PARTS))
    return [SMALLEST << power for power in range((most // SMALLEST).bit_length())]


def _measure_size(size: int, threads: int) -> Bandwidth:
    count = max(1024, size // threads // 4)
    repeats = max(1, PASS_BYTES // (4 * count))
    # Fill the arrays, since untouched pages share one page of zeros, which stays in the cache.
    places = [np.full(count, 1, np.int32) for _ in range(threads)]
    moved = 4 * count * threads * repeats
    best = [
        _time(kernel, places, repeats, moved, threads) for kernel in (_make_reader, _make_copier)
    ]
    rates = max(best, key=max)
    return Bandwidth(
        bytes=4 * count * threads,
        threads=threads,
        gbytes_s=max(rates),
        spread=max(rates) / statistics.median(rates) - 1,
    )


Kernel = Callable[[Any, int], Callable[[], object]]


def _make_reader(place: Any, repeats: int) -> Callable[[], object]:
    rows = np.broadcast_to(place, (repeats, len(place)))
    out = np.empty(repeats, np.int32)
    return lambda: np.maximum.reduce(rows, axis=1, out=out)


def _make_copier(place: Any, repeats: int) -> Callable[[], object]:
    half = place.nbytes // 2
    source, target = place.ctypes.data, place.ctypes.data + half

    def run() -> None:
        for _ in range(repeats):
            ctypes.memmove(target, source, half)  # releases the GIL

    return run


def _time(
    kernel: Kernel, places: Sequence[Any], repeats: int, moved: int, threads: int
) -> list[float]:
    runs = [kernel(place, repeats) for place in places]
    rates: list[float] = []
    with ThreadPoolExecutor(threads) as pool:

        def once() -> None:
            others = [pool.submit(run) for run in runs[1:]]
            runs[0]()
            for task in others:
                task.result()

        once()  # warm-up
        used, until = time.process_time(), time.perf_counter() + EACH_S * LOAD_FACTOR
        while len(rates) < FEWEST or (
            time.process_time() - used < EACH_S * threads and time.perf_counter() < until
        ):
            start = time.perf_counter()
            once()
            rates.append(moved / (time.perf_counter() - start) / 1e9)
    return rates


def find_levels(curve: Sequence[Bandwidth], threads: int) -> list[CacheLevel]:
    """Return the rate of each cache, then of memory. A cache's rate is the highest rate among
    the largest set that fits into half of the cache and all larger sets."""
    own = [one for one in curve if one.threads == threads]
    levels = []
    for name, size, shared in read_cache_sizes():
        capacity = size * (1 if shared else threads)
        within = [one for one in own if one.bytes <= capacity / 2]
        if within:
            # Loop overhead slows down small sets, so include the rates of all larger sets.
            rate = max(one.gbytes_s for one in own if one.bytes >= within[-1].bytes)
            levels.append(CacheLevel(name=name, bytes=capacity, gbytes_s=rate))
    return [*levels, CacheLevel(name="memory", bytes=own[-1].bytes, gbytes_s=own[-1].gbytes_s)]


def read_cache_sizes(place: Path = CACHES) -> list[tuple[str, int, bool]]:
    """Return (name, bytes, whether cores share it) for each data cache, the smallest first."""
    sizes = []
    for index in sorted(place.glob("index*")):
        try:
            kind, level, size, cores = (
                (index / name).read_text().strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
            amount = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
        if kind != "Instruction":
            sizes.append((f"L{level}", amount, "," in cores or "-" in cores))
    return sizes
