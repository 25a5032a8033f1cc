"""YOLOX's raw rows: one box a cell, offsets from the cell and logarithms of sizes. Objectness first, then the grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from detector.stages.heads.boxes import MAX_LOG_SIZE, Floats, objectness_first, sound, xyxy
from detector.types import Candidates


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of an input of height x width pixels: maps by ``strides``, each by y, x."""

    height: int
    width: int
    strides: tuple[int, ...] = (8, 16, 32)


@cache
def cells_of(grid: Grid) -> Floats:
    """[N, 3]: column, row and stride of every cell."""
    maps = []
    for stride in grid.strides:
        y, x = np.indices((-(-grid.height // stride), -(-grid.width // stride))).reshape(2, -1)
        maps.append(np.stack([x, y, np.full_like(x, stride)], axis=1))
    cells = np.concatenate(maps).astype(np.float32)
    cells.setflags(write=False)  # shared by all who ask
    return cells


def yolox(outputs: list[Floats], conf: float, *, grid: Grid) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``, in the order of the cells.

    ``outputs``: [1, N, 5 + C]: offsets x and y in cells, logarithms of width and height in cells, objectness and class
    probabilities (the network ends in their logistic).
    """
    rows, scores, class_ids, at = objectness_first(outputs[0][0], conf)
    boxes = xyxy(_centres_sizes(rows, cells_of(grid)[at]))
    keep = sound(boxes)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def yolox_dense(outputs: list[Floats], *, grid: Grid) -> Floats:
    """Every cell: [1, N, 5 + C] float32: cx, cy, w, h in network pixels, objectness, class probabilities."""
    raw = outputs[0][0]
    return np.concatenate([_centres_sizes(raw, cells_of(grid)), raw[:, 4:]], axis=1)[None]


@np.errstate(invalid="ignore", over="ignore")  # of a broken network; ``sound`` drops it
def _centres_sizes(rows: Floats, cells: Floats) -> Floats:
    """[M, 4] cx, cy, w, h in network pixels."""
    stride = cells[:, 2:]
    centres = (rows[:, :2] + cells[:, :2]) * stride
    sizes = np.exp(np.minimum(rows[:, 2:4], MAX_LOG_SIZE)) * stride
    return np.concatenate([centres, sizes], axis=1)
