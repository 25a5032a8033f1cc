"""Wait for events of other threads or processes, not for a fixed time.

A machine may be three times slower than ours, or pause for seconds. So no test sleeps and then
checks, or requires that something is fast.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

PATIENCE_S = 90.0  # longer than any event takes


def wait_for(
    condition: Callable[[], object], seconds: float = PATIENCE_S, what: str = "it"
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds:.0f} s"
        time.sleep(0.005)


def meet(barrier: threading.Barrier) -> None:
    with suppress(threading.BrokenBarrierError):
        barrier.wait(0.3)
