"""What a call takes of memory, as Python's tracer counts it: numpy's arrays are in it."""

import statistics
import tracemalloc
from collections.abc import Callable
from typing import Any


def bytes_of(call: Callable[[], Any], times: int = 3) -> tuple[int, int]:
    """Return the bytes that the call's result holds and the peak during the call, as medians.

    The tracer counts every thread of the process. A process of xdist has one that receives a
    thousand tests at once now and then: 50 to 390 KB during one call (measured with 400 calls of 20
    ms while another process stole 600 tests), none during the others.
    """
    held, peaks = [], []
    tracemalloc.start()
    try:
        for _ in range(times):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            result = call()
            now, peak = tracemalloc.get_traced_memory()
            held.append(now - before)
            peaks.append(peak - before)
            del result
    finally:
        tracemalloc.stop()
    return int(statistics.median(held)), int(statistics.median(peaks))
