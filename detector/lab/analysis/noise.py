"""How many decimals of a figure mean something.

Two at most. Where the figure's own noise is known, no decimal is shown that lies below it: 15.39
FPS, where rounds of the same run differ by 2 FPS, is 15 FPS.
"""

from __future__ import annotations

import math

from detector.lab.session.passes import Interval, LoopFacts
from detector.lab.session.read import SavedSession

MOST = 2


def decimals(noise: float) -> int:
    """``noise``: by how much a repeat would differ. A decimal needs noise below half its unit."""
    if not noise > 0:
        return MOST
    if not math.isfinite(noise):
        return 0
    return min(MOST, max(0, math.ceil(-math.log10(2 * noise))))


def spread_of_run(session: SavedSession) -> float:
    """By which share the same run differed from round to round; 0 where it ran only once."""
    loop = session.facts(LoopFacts)
    rounds = [ms for ms in loop.on_ms if ms > 0] if loop is not None else []
    return max(rounds) / min(rounds) - 1 if len(rounds) > 1 else 0.0


def decimals_of_rate(session: SavedSession, rate: float | None) -> int:
    """Of a measured FPS of this run."""
    return decimals((rate or 0.0) * spread_of_run(session))


def decimals_of(interval: Interval) -> int:
    """Of a median whose rounds lie apart."""
    return decimals(interval.high - interval.low)
