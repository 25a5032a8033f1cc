"""Choose the decimals of a figure: two at most, and none below the figure's noise."""

from __future__ import annotations

import math

from detector.core.session.measured import Interval
from detector.lab.session.passes import LoopFacts
from detector.lab.session.read import SavedSession

MOST = 2


def decimals(noise: float) -> int:
    if not noise > 0:
        return MOST
    if not math.isfinite(noise):
        return 0
    return min(MOST, max(0, math.ceil(-math.log10(2 * noise))))


def spread_of_run(session: SavedSession) -> float:
    loop = session.facts(LoopFacts)
    rounds = [ms for ms in loop.on_ms if ms > 0] if loop is not None else []
    return max(rounds) / min(rounds) - 1 if len(rounds) > 1 else 0.0


def decimals_of_rate(session: SavedSession, rate: float | None) -> int:
    return decimals((rate or 0.0) * spread_of_run(session))


def decimals_of(interval: Interval) -> int:
    return decimals(interval.high - interval.low)
