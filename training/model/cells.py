"""The grid of all cells of the three heads, in the order of the outputs: where each lies and how wide it is."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

STRIDES = (8, 16, 32)
ANCHORS = ((16.0, 20.0), (44.0, 52.0), (128.0, 120.0))  # as in street.cfg, width and height in pixels


@lru_cache(maxsize=16)
def grid(height: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Cells' upper left corners [N, 2] in cells, their strides [N, 1], their anchors [N, 2]."""
    corners, strides, anchors = [], [], []
    for stride, anchor in zip(STRIDES, ANCHORS, strict=True):
        y, x = np.indices((height // stride, width // stride), np.float32)
        corners.append(np.stack([x, y], axis=-1).reshape(-1, 2))
        strides.append(np.full((corners[-1].shape[0], 1), stride, np.float32))
        anchors.append(np.tile(np.array(anchor, np.float32), (corners[-1].shape[0], 1)))
    return np.concatenate(corners), np.concatenate(strides), np.concatenate(anchors)


def centres(height: int, width: int) -> NDArray[np.float32]:
    """[N, 2] in pixels."""
    corners, strides, _ = grid(height, width)
    return (corners + 0.5) * strides
