"""Stop a run that misreads outputs whose meaning is unproved. A network from elsewhere may pass
every check of its file and still be read wrongly. The run ends at results that no detector has: a
score above 1, a class outside the names, a fractional class, or only boxes within one pixel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import ModelError
from detector.core.stages.readings import NOT_WHOLE
from detector.core.types import Candidates

MOST_SCORE = 1.001  # half precision rounds a probability of 1 to 1.0005
PIXEL = 1.0
CORNER = 1.5  # boxes in 0..1 taken for pixels lie in the first pixel, or just beyond
ENOUGH = 8  # boxes anywhere, all of them within a pixel

Read = Callable[[list[NDArray[np.float32]], float], Candidates]


def watched(head: Read, model: str, classes: int, cure: str) -> Read:
    """Wrap the head so that it raises ModelError, with ``cure``, for impossible results."""

    def read(outputs: list[NDArray[np.float32]], conf: float) -> Candidates:
        found = head(outputs, conf)
        if len(found.scores) and (reason := impossible(found, classes)) is not None:
            raise ModelError(f"{model}: its outputs are misread: {reason}; {cure}")
        return found

    return read


def impossible(found: Candidates, classes: int) -> str | None:
    """Describe an impossible result, or return None. ``found``: at least one candidate."""
    best = float(found.scores.max())
    if best > MOST_SCORE:
        return f"a detection has a score of {best:.4g}, outside 0..1"
    first = int(found.class_ids.min())
    if first == NOT_WHOLE:
        return "the class of a detection is not a whole number: the columns have another order"
    if first < 0:
        return (
            f"the class of a detection is {-first} below the number of the first name: either the "
            "names begin at another number (classes: first), or that class means background "
            "(scores: background: first)"
        )
    last = int(found.class_ids.max())
    if last >= classes:
        return (
            f"a detection has class {last}, but there are names only for 0 to {classes - 1} "
            "(--names FILE gives others)"
        )
    sizes = found.boxes[:, 2:] - found.boxes[:, :2]
    if (sizes <= PIXEL).all():
        in_corner = bool((np.abs(found.boxes) <= CORNER).all())
        if in_corner or len(sizes) >= ENOUGH:
            return (
                f"all {len(sizes)} boxes of a picture are within one pixel, so they are probably "
                "in 0..1, not in pixels"
            )
    return None
