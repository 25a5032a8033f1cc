"""Wait for an event of another thread or process, never for a fixed time.

A machine may be three times slower than ours, or halt for seconds. So no test sleeps and then
checks, and none requires that something was quick.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

PATIENCE_S = 90.0  # far beyond what anything takes; what never comes fails with a name


def wait_for(
    condition: Callable[[], object], seconds: float = PATIENCE_S, what: str = "it"
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about in {seconds:.0f} s"
        time.sleep(0.005)


def meet(barrier: threading.Barrier) -> None:
    with suppress(threading.BrokenBarrierError):
        barrier.wait(0.3)
