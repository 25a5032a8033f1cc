"""The loop itself: what its instruments cost, and what every stage takes when it has the machine to itself."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from detector.analysis.why import alone_in
from detector.passes.base import Occasion, run_again
from detector.session.reading import SavedSession

ORDER = 0
WHAT = "what the instruments cost, and each stage by itself: seven more runs"
ROUNDS = 3
TOO_MUCH = 0.02  # of a frame's time; above it the instruments are named in a warning


def run(occasion: Occasion) -> dict[str, Any]:
    off, on = [], []
    for _ in range(ROUNDS):  # in turn, so that a slow minute falls on both
        off.append(_period(occasion.again(instruments=False, nvtx=False)))
        on.append(_period(occasion.again()))
    ratios = [with_them / without - 1 for with_them, without in zip(on, off, strict=True)]
    median = statistics.median(ratios)
    # Above the noise only: what the instruments cost must show in every round, not in the middle one alone.
    costly = min(ratios) > TOO_MUCH
    return {
        "off_ms": off,
        "on_ms": on,
        "instruments": {"median": median, "low": min(ratios), "high": max(ratios)},
        "warning": f"the instruments cost {median:.1%} of a frame's time" if costly else None,
        "slowdown": 1 + median,
        "alone": _alone(occasion),
    }


def _period(session: SavedSession) -> float:
    return 1e3 / float(session.document["fps"]["end_to_end"])


def _alone(occasion: Occasion) -> dict[str, dict[str, float]]:
    """Seconds and CPU seconds of a call of each stage, from a run in one plain loop."""
    config = occasion.config
    one_by_one = replace(config, loop=replace(config.loop, sync=True))
    alone = alone_in(run_again(occasion.source, one_by_one).document)
    return {"seconds": dict(alone.seconds), "cpu": dict(alone.cpu)}
