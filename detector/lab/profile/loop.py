"""Measure the cost of the loop's instruments by alternating runs with and without them."""

from __future__ import annotations

from detector.core.session.measured import Interval
from detector.lab.profile.base import Occasion, Pass
from detector.lab.session.passes import LoopFacts
from detector.lab.session.read import SavedSession

ROUNDS = 3
TOO_MUCH = 0.02  # share of a frame's time; the user is warned of a higher cost


def measure_instruments(occasion: Occasion) -> LoopFacts:
    off, on = [], []
    for _ in range(ROUNDS):  # alternating, so that a slow minute affects both kinds of run
        off.append(_frame_ms(occasion.rerun(instruments=False, nvtx=False)))
        on.append(_frame_ms(occasion.rerun()))
    shares = [with_them / without - 1 for with_them, without in zip(on, off, strict=True)]
    cost = Interval.over(shares)
    # Warn only if every round exceeds the limit, so that noise causes no warning.
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
    what=f"the cost of the timers, in {2 * ROUNDS} more runs",
    facts=LoopFacts,
    run=measure_instruments,
)
