"""YOLOv5's and YOLOv7's detection layers: raw maps with anchors, all numbers through a logistic.

Centre = (2s - 0.5 + cell) * stride, size = (2s)^2 * anchor, s the logistic of the raw number. Objectness first:
see ``sieve.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.stages.heads.boxes import Floats, logit, sigmoid, xyxy
from detector.stages.heads.sieve import cells_of, joined, survivors
from detector.types import Candidates


@dataclass(frozen=True, slots=True)
class AnchoredLayer:
    """How a map [1, A*(5+C), h, w] becomes boxes."""

    anchors: tuple[tuple[float, float], ...]  # A pairs of width, height in network pixels
    classes: int
    stride: int  # network pixels per cell


def anchored(outputs: list[Floats], conf: float, layers: Sequence[AnchoredLayer]) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``; by layer, anchor, y, x.

    ``outputs``: one raw map [1, A*(5+C), h, w] float32 per layer. Boxes are xyxy network pixels, not clipped.
    Numbers that are no numbers count as below any threshold. Nothing returned shares memory with ``outputs``.
    """
    return joined([_candidates(output, conf, layer) for output, layer in zip(outputs, layers, strict=True)])


def anchored_dense(outputs: list[Floats], layers: Sequence[AnchoredLayer]) -> Floats:
    """Every row: [1, N, 5 + C] float32: cx, cy, w, h in network pixels, objectness, class probabilities.

    Rows by layer, anchor, y, x. The plain twin of ``anchored``: for comparisons, not for speed.
    """
    rows = []
    for output, layer in zip(outputs, layers, strict=True):
        raw = cells_of(output, len(layer.anchors))
        a, y, x = np.indices((raw.shape[0], *raw.shape[2:])).reshape(3, -1)
        cells = raw[a, :, y, x]
        rows.append(np.concatenate([_centres_sizes(cells, a, y, x, layer), sigmoid(cells[:, 4:])], axis=1))
    return np.concatenate(rows)[None]


def _candidates(output: Floats, conf: float, layer: AnchoredLayer) -> Candidates:
    raw = cells_of(output, len(layer.anchors))
    a, y, x, cells, class_ids, best = survivors(raw, logit(conf), anchors_last=False)
    scores = sigmoid(cells[:, 4]) * sigmoid(best)
    boxes = xyxy(_centres_sizes(cells, a, y, x, layer))
    keep = (scores >= np.float32(conf)) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def _centres_sizes(
    cells: Floats, a: NDArray[np.intp], y: NDArray[np.intp], x: NDArray[np.intp], layer: AnchoredLayer
) -> Floats:
    """[M, 4] cx, cy, w, h in network pixels, of cells [M, 5+C] at rows y, columns x with anchors a."""
    doubled = sigmoid(cells[:, :4]) * 2
    origin = np.stack([x, y], axis=1).astype(np.float32) - np.float32(0.5)
    centres = (doubled[:, :2] + origin) * np.float32(layer.stride)
    sizes = np.square(doubled[:, 2:]) * np.array(layer.anchors, np.float32)[a]
    return np.concatenate([centres, sizes], axis=1)
