"""The loop itself, and what its instruments cost."""

from __future__ import annotations

import statistics
from typing import Any

from detector.jobs.profile.base import Occasion
from detector.session.read import SavedSession

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
    }


def _period(session: SavedSession) -> float:
    return 1e3 / float(session.document["fps"]["end_to_end"])
