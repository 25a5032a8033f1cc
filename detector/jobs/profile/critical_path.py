"""The chain of calls that the wall time of the plain run consists of. Nothing is run again."""

from __future__ import annotations

from typing import Any

from detector.analysis.loop.what_if import path_of
from detector.jobs.profile.base import NotHereError, Occasion

ORDER = 1
WHAT = "the chain of calls behind the wall time"
UNDISTURBED = "nothing is run again"


def run(occasion: Occasion) -> dict[str, Any]:
    path = path_of(occasion.plain)
    if path is None:
        raise NotHereError("the run recorded no spans")
    return path.as_json()
