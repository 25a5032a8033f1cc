"""What heads share: logistic, its inverse as a sieve, and boxes by their corners."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# e^30 times any anchor squares without overflow in float32, and no picture has 1e13 pixels.
MAX_LOG_SIZE = np.float32(30)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x) without overflow at either end."""
    e = np.exp(-np.abs(x))
    result: Floats = np.where(x >= 0, np.float32(1), e) / (1 + e)
    return result


def logit(p: float) -> float:
    """Raw objectness at probability p, a little below: a sieve, the exact comparison comes after."""
    if not 0 < p < 1:
        return -np.inf if p <= 0 else 15.0
    return float(np.log(p / (1 - p))) - 1e-3


@np.errstate(invalid="ignore", over="ignore")  # inf - inf of a broken network; ``sound`` drops it
def xyxy(boxes: Floats) -> Floats:
    """cx, cy, w, h -> x1, y1, x2, y2, [M, 4]."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def sound(boxes: Floats) -> NDArray[np.bool_]:
    """[M]: boxes of numbers that are numbers, and whose areas float32 can hold: no picture has 1e13 pixels a side."""
    below: NDArray[np.bool_] = np.abs(boxes) < np.float32(1e13)  # NaN and inf compare false
    return np.all(below, axis=1)  # type: ignore[no-any-return]


def objectness_first(rows: Floats, conf: float) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.intp]]:
    """Of rows [N, 5 + C] with probabilities from column 4 on, those whose objectness x best class reaches ``conf``.

    Returns (rows [M, 5 + C], a copy; scores [M]; class ids [M]; their places among the N). Classes are looked at only
    where the objectness alone reaches the threshold. Numbers that are no numbers count as below it.
    """
    at = np.flatnonzero(rows[:, 4] >= np.float32(conf))  # NaN compares false
    found = rows[at]
    class_ids = found[:, 5:].argmax(axis=1)
    best = np.take_along_axis(found[:, 5:], class_ids[:, None], axis=1)[:, 0]
    with np.errstate(invalid="ignore", over="ignore"):
        scores = found[:, 4] * best
        keep = (scores >= np.float32(conf)) & np.isfinite(scores)
    return found[keep], scores[keep], class_ids[keep], at[keep]
