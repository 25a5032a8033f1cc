"""Darknet's [yolo] layers: raw maps with anchors.

Objectness first: only cells whose objectness alone reaches the threshold are decoded. On a street scene that
is some 50 of 2,535, so the exponentials of all the others are never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.stages.heads.boxes import MAX_LOG_SIZE, Floats, logit, sigmoid, xyxy
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
    found = [_candidates(output, conf, layer) for output, layer in zip(outputs, layers, strict=True)]
    if len(found) == 1:
        return found[0]
    return Candidates(
        np.concatenate([part.boxes for part in found]),
        np.concatenate([part.scores for part in found]),
        np.concatenate([part.class_ids for part in found]),
    )


def darknet_yolo_dense(outputs: list[Floats], layers: Sequence[YoloLayer]) -> Floats:
    """Every row: [1, N, 5 + C] float32: cx, cy, w, h in network pixels, objectness, class probabilities.

    Rows by layer, y, x, anchor. The plain twin of ``darknet_yolo``: for comparisons, not for speed.
    """
    rows = []
    for output, layer in zip(outputs, layers, strict=True):
        raw = _cells(output, layer)
        anchors, _, height, width = raw.shape
        y, x, a = np.indices((height, width, anchors)).reshape(3, -1)
        cells = raw[a, :, y, x]
        scores = cells[:, 4:] if layer.new_coords else sigmoid(cells[:, 4:])
        rows.append(np.concatenate([_centres_sizes(cells, y, x, a, layer), scores], axis=1))
    return np.concatenate(rows)[None]


def _cells(output: Floats, layer: YoloLayer) -> Floats:
    """[A, 5+C, h, w], a view."""
    height, width = output.shape[2:]
    cells: Floats = output[0].reshape(len(layer.anchors), 5 + layer.classes, height, width)
    return cells


def _candidates(output: Floats, conf: float, layer: YoloLayer) -> Candidates:
    raw = _cells(output, layer)
    threshold = conf if layer.new_coords else logit(conf)
    y, x, a = np.nonzero(raw[:, 4].transpose(1, 2, 0) >= threshold)  # NaN compares false
    cells = raw[a, :, y, x]  # a copy, [M, 5+C]
    class_ids = cells[:, 5:].argmax(axis=1)
    best = np.take_along_axis(cells[:, 5:], class_ids[:, None], axis=1)[:, 0]
    # The same sieve once more: a network without trained objectness has all of its cells here.
    alive = best >= threshold
    y, x, a, cells, class_ids, best = y[alive], x[alive], a[alive], cells[alive], class_ids[alive], best[alive]
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
