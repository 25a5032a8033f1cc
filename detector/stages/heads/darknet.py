"""Darknet's [yolo] layers: raw maps with anchors. Objectness first: see ``sieve.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.stages.heads.boxes import MAX_LOG_SIZE, Floats, logit, sigmoid, xyxy
from detector.stages.heads.sieve import cells_of, joined, survivors
from detector.types import Candidates


@dataclass(frozen=True, slots=True)
class YoloLayer:
    """One darknet [yolo] layer: how a map [1, A*(5+C), h, w] becomes boxes."""

    anchors: tuple[tuple[float, float], ...]  # A pairs of width, height in network pixels
    classes: int
    cell_width: float  # network pixels per cell
    cell_height: float
    scale_x_y: float = 1.0  # stretches the centre beyond its cell, so that its edge can be reached
    new_coords: bool = False  # the network itself ends in a logistic; sizes are (2 t)^2 instead of e^t


def darknet_yolo(outputs: list[Floats], conf: float, layers: Sequence[YoloLayer]) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``, layers in cfg order, each by y, x, anchor.

    ``outputs``: one raw map [1, A*(5+C), h, w] float32 per layer. Boxes are xyxy network pixels, not clipped.
    Numbers that are no numbers count as below any threshold. Nothing returned shares memory with ``outputs``.
    """
    return joined([_candidates(output, conf, layer) for output, layer in zip(outputs, layers, strict=True)])


def darknet_yolo_dense(outputs: list[Floats], layers: Sequence[YoloLayer]) -> Floats:
    """Every row: [1, N, 5 + C] float32: cx, cy, w, h in network pixels, objectness, class probabilities.

    Rows by layer, y, x, anchor. The plain twin of ``darknet_yolo``: for comparisons, not for speed.
    """
    rows = []
    for output, layer in zip(outputs, layers, strict=True):
        raw = cells_of(output, len(layer.anchors))
        anchors, _, height, width = raw.shape
        y, x, a = np.indices((height, width, anchors)).reshape(3, -1)
        cells = raw[a, :, y, x]
        scores = cells[:, 4:] if layer.new_coords else sigmoid(cells[:, 4:])
        rows.append(np.concatenate([_centres_sizes(cells, y, x, a, layer), scores], axis=1))
    return np.concatenate(rows)[None]


def _candidates(output: Floats, conf: float, layer: YoloLayer) -> Candidates:
    threshold = conf if layer.new_coords else logit(conf)
    raw = cells_of(output, len(layer.anchors))
    a, y, x, cells, class_ids, best = survivors(raw, threshold, anchors_last=True)
    with np.errstate(invalid="ignore", over="ignore"):  # a broken network's inf and NaN end in the next line
        scores = cells[:, 4] * best if layer.new_coords else sigmoid(cells[:, 4]) * sigmoid(best)
        boxes = xyxy(_centres_sizes(cells, y, x, a, layer))
        keep = (scores >= np.float32(conf)) & np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def _centres_sizes(
    cells: Floats, y: NDArray[np.intp], x: NDArray[np.intp], a: NDArray[np.intp], layer: YoloLayer
) -> Floats:
    """[M, 4] cx, cy, w, h in network pixels, of cells [M, 5+C] at rows y, columns x with anchors a."""
    anchors = np.array(layer.anchors, np.float32)[a]
    scale = np.float32(layer.scale_x_y)
    cell = np.array([layer.cell_width, layer.cell_height], np.float32)
    origin = np.stack([x, y], axis=1).astype(np.float32)
    if layer.new_coords:
        centres, sizes = cells[:, :2], np.square(np.clip(cells[:, 2:4], -1e6, 1e6)) * 4
    else:
        centres, sizes = sigmoid(cells[:, :2]), np.exp(np.minimum(cells[:, 2:4], MAX_LOG_SIZE))
    centres = (centres * scale - (scale - 1) / 2 + origin) * cell
    return np.concatenate([centres, sizes * anchors], axis=1)
