"""Stop a run that misreads a network's outputs. A model file may pass every check and still be read
wrongly. The run ends at results that are impossible for a detector: a score above 1, a class
without a name, a fractional class, or no box larger than a pixel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import ModelError
from detector.core.stages.readings import NOT_WHOLE
from detector.core.types import Candidates

MOST_SCORE = 1.001  # half precision rounds a probability of 1 to 1.0005
PIXEL = 1.0
CORNER = 1.5  # boxes in 0..1, read as pixels, are in the first pixel or just outside it
ENOUGH = 8  # this many boxes of at most a pixel are suspicious anywhere in the picture

Head = Callable[[list[NDArray[np.float32]], float], Candidates]


def check_results(head: Head, model: str, classes: int, fix: str) -> Head:
    """Wrap the head so that impossible results raise ModelError. ``fix``: what the user can do."""

    def checked(outputs: list[NDArray[np.float32]], conf: float) -> Candidates:
        candidates = head(outputs, conf)
        reason = describe_impossible(candidates, classes) if len(candidates.scores) else None
        if reason is not None:
            raise ModelError(f"{model}: its outputs are misread: {reason}; {fix}")
        return candidates

    return checked


def describe_impossible(candidates: Candidates, classes: int) -> str | None:
    """Describe an impossible result, or return None. There must be at least one candidate."""
    best = float(candidates.scores.max())
    if best > MOST_SCORE:
        return f"a detection has a score of {best:.4g}, outside 0..1"
    first = int(candidates.class_ids.min())
    if first == NOT_WHOLE:
        return "the class of a detection is not a whole number: the columns have another order"
    if first < 0:
        return (
            f"the class of a detection is {-first} below the number of the first name: if the "
            'names begin at another number, set "first" under "classes"; if that class means '
            'background, set "background: first" under "scores"'
        )
    last = int(candidates.class_ids.max())
    if last >= classes:
        return (
            f"a detection has class {last}, but there are names only for 0 to {classes - 1} "
            "(--names FILE gives others)"
        )
    sizes = candidates.boxes[:, 2:] - candidates.boxes[:, :2]
    if (sizes <= PIXEL).all():
        in_corner = bool((np.abs(candidates.boxes) <= CORNER).all())
        if in_corner or len(sizes) >= ENOUGH:
            return (
                f"all {len(sizes)} boxes of a picture are within one pixel, so they are probably "
                "in 0..1, not in pixels"
            )
    return None
