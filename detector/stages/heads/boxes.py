"""What heads share: logistic, its inverse as a sieve, and boxes by their corners."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


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


def xyxy(boxes: Floats) -> Floats:
    """cx, cy, w, h -> x1, y1, x2, y2, [M, 4]."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
