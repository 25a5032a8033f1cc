"""Pause threads at random, as on a busy machine, so that tests which depend on timing fail.

    PYTHONPATH=$PWD/scripts/stalling scripts/test tests/live

Each Python process imports this at its start: pytest, and the programs that tests start. Each of
their threads pauses about every STALL_EVERY_S seconds (default: 1), for up to STALL_LONGEST_S
seconds (default: 0.5), at a call or a return in detector/ or tests/. With 0.3 and 1.2 s, programs
run at a third of their speed. Then ignore tests that fail only because they waited for something
for 90 s (PATIENCE_S). A single run without failures proves little: repeat it.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from types import FrameType

EVERY_S = float(os.environ.get("STALL_EVERY_S", "1"))
LONGEST_S = float(os.environ.get("STALL_LONGEST_S", "0.5"))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OURS = (os.path.join(ROOT, "detector", ""), os.path.join(ROOT, "tests", ""))

# Private copies, because tests replace the clock and seed the shared generator.
_random, _now, _sleep = random.Random(), time.perf_counter, time.sleep
_next = threading.local()


def stall(frame: FrameType, event: str, _: object) -> None:
    if event not in ("call", "return"):
        return
    due = getattr(_next, "due", None)
    if due is None:
        _next.due = _now() + _random.expovariate(1 / EVERY_S)
    elif _now() >= due and frame.f_code.co_filename.startswith(OURS):
        _sleep(_random.uniform(0.02, LONGEST_S))
        _next.due = _now() + _random.expovariate(1 / EVERY_S)


os.register_at_fork(after_in_child=_random.seed)
threading.setprofile(stall)
sys.setprofile(stall)
