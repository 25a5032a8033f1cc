"""What the instruments of the loop cost: runs with and without them, in turn."""

from __future__ import annotations

from detector.lab.profile.base import Occasion, Pass
from detector.lab.session.passes import Interval, LoopFacts
from detector.lab.session.read import SavedSession

ROUNDS = 3
TOO_MUCH = 0.02  # of a frame's time; above it a warning names the instruments


def measure_instruments(occasion: Occasion) -> LoopFacts:
    off, on = [], []
    for _ in range(ROUNDS):  # in turn, so that a slow minute falls on both
        off.append(_frame_ms(occasion.again(instruments=False, nvtx=False)))
        on.append(_frame_ms(occasion.again()))
    shares = [with_them / without - 1 for with_them, without in zip(on, off, strict=True)]
    cost = Interval.over(shares)
    # The warning must stand above the noise: the cost shows in every round, not in the middle one.
    costly = cost.low > TOO_MUCH
    return LoopFacts(
        off_ms=off,
        on_ms=on,
        instruments=cost,
        warning=f"the instruments take {cost.median:.1%} of a frame's time" if costly else None,
        slowdown=1 + cost.median,
    )


def _frame_ms(session: SavedSession) -> float:
    return 1e3 * session.document.fps.frame_s


PASS = Pass(
    order=0,
    what=f"what the timers themselves cost: {2 * ROUNDS} more runs",
    facts=LoopFacts,
    run=measure_instruments,
)
