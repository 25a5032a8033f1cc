"""How many decimals of a figure mean something.

Two at most. Where the figure's own noise is known, no decimal is shown that lies below it: 15.39
FPS, where rounds of the same run differ by 2 FPS, is 15 FPS.
"""

from __future__ import annotations

import math

from detector.lab.session.passes import LoopFacts, WhatIfFacts
from detector.lab.session.read import SavedSession

MOST = 2
MISSES = 0.2  # a replay that is further off its own run predicts no figure


def decimals(noise: float) -> int:
    """``noise``: by how much the figure would differ if it were taken again. From half a unit of a
    decimal on that decimal is not shown."""
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


def misses(facts: WhatIfFacts) -> str | None:
    """Why no predicted FPS is shown; None where the replay holds the run as it was."""
    if abs(facts.replay_error) <= MISSES:
        return None
    return (
        f"the replay does not hold this run (off by {facts.replay_error:+.0%}): measure it with "
        "compare"
    )


def is_above_now(session: SavedSession, facts: WhatIfFacts, rate: float) -> bool:
    """Whether a predicted FPS lies above this run's, by more than its rounds lie apart."""
    now = facts.measured_fps
    return now is None or rate > now * (1 + spread_of_run(session))


def decimals_of_prediction(session: SavedSession, facts: WhatIfFacts, rate: float) -> int:
    """Of a predicted FPS: no better than the replay of the run as it was, or than that run."""
    return decimals(rate * max(abs(facts.replay_error), spread_of_run(session)))
