"""What would happen if a stage were faster: the run played again on paper, and with --prove, for real."""

from __future__ import annotations

from typing import Any

from detector.analysis.what_if import predictions
from detector.analysis.why import Alone, replay_of
from detector.passes.base import NotHereError, Occasion

ORDER = 2
WHAT = "the run replayed with one thing changed"
UNDISTURBED = "nothing is run again, or with --prove, without a profiler"


def run(occasion: Occasion) -> dict[str, Any]:
    loop = occasion.found.get("loop", {})
    alone = Alone(**loop["alone"]) if "alone" in loop else None
    played = replay_of(occasion.plain, alone=alone)
    if played is None:
        raise NotHereError("the run recorded no spans")
    rows = [prediction.as_json() for prediction in predictions(played)]
    facts: dict[str, Any] = {
        "replay_error": played.error,
        "measured_fps": played.load.frames / played.measured_s,
        "predictions": rows,
    }
    if occasion.prove:
        from detector.passes.stand_ins import prove

        facts["proofs"] = prove(occasion.source, occasion.config, rows)
    return facts
