"""Decode the raw maps of YOLOv5 and YOLOv7; heads.py decodes those of darknet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from detector.core.stages.heads import (
    Floats,
    Sizes,
    freeze,
    join,
    logit,
    map_sizes,
    no_candidates,
    probabilities,
    sigmoid,
    survivors,
    xyxy,
)
from detector.core.types import Candidates


@dataclass(frozen=True, slots=True)
class AnchoredLayer:
    """The numbers that decode a map [1, A*(5+C), h, w]."""

    anchors: tuple[tuple[float, float], ...]  # (width, height) of A anchors, network pixels
    classes: int
    stride: int  # pixels per cell


def anchor_maps(outputs: list[Floats], conf: float, layers: Sequence[AnchoredLayer]) -> Candidates:
    """Return candidates whose objectness times best class score is at least ``conf``,
    sorted by layer, anchor, y, x. ``outputs``: one raw map [1, A*(5+C), h, w] float32 per layer.
    Boxes: network pixels, unclipped."""
    if len({(len(layer.anchors), layer.classes) for layer in layers}) > 1:
        return join(
            [
                anchor_maps([output], conf, [layer])
                for output, layer in zip(outputs, layers, strict=True)
            ]
        )
    surviving = survivors(outputs, len(layers[0].anchors), logit(conf), anchors_last=False)
    if surviving is None:
        return no_candidates()
    at, cells, class_ids, best = surviving
    s = probabilities((cells[:, :5], best))
    scores = s[:, 4] * s[:, 5]
    table = _anchored_table(tuple(layers), map_sizes(outputs))[at]
    boxes = xyxy(_anchored_centres_sizes(s, table))
    keep = (scores >= np.float32(conf)) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def anchor_maps_dense(outputs: list[Floats], layers: Sequence[AnchoredLayer]) -> Floats:
    """Decode every row as ``anchor_maps`` does. Return [1, N, 5 + C] float32: cx, cy, w, h in
    network pixels, objectness, class probabilities; sorted by layer, anchor, y, x."""
    table, columns = _anchored_table(tuple(layers), map_sizes(outputs)), layers[0].classes + 5
    dense, first = np.empty((1, len(table), columns), np.float32), 0
    for output, layer in zip(outputs, layers, strict=True):
        # Decode anchor by anchor, so that the numbers stay in the CPU cache.
        for raw in output.reshape(len(layer.anchors), columns, -1):
            dense[0, first : first + raw.shape[1]] = sigmoid(raw).T
            first += raw.shape[1]
    dense[0, :, :4] = _anchored_centres_sizes(dense[0], table)
    return dense


@lru_cache(64)
def _anchored_table(layers: tuple[AnchoredLayer, ...], sizes: Sizes) -> Floats:
    """Return [N, 5], a row per anchor and cell: x - 0.5, y - 0.5, the anchor's w and h, stride."""
    rows = []
    for layer, (height, width) in zip(layers, sizes, strict=True):
        a, y, x = np.indices((len(layer.anchors), height, width)).reshape(3, -1)
        origin = np.stack([x, y], axis=1).astype(np.float32) - np.float32(0.5)
        anchors = np.array(layer.anchors, np.float32)[a]
        strides = np.full((len(a), 1), layer.stride, np.float32)
        rows.append(np.concatenate([origin, anchors, strides], axis=1))
    return freeze(np.concatenate(rows))


def _anchored_centres_sizes(s: Floats, table: Floats) -> Floats:
    """Return cx, cy, w, h [M, 4] in network pixels. ``s`` [M, 4 or more]: the sigmoid of the
    cells' raw numbers; ``table``: the rows of these cells.

    Centre = (2s - 0.5 + cell) * stride, size = (2s)^2 * anchor.
    """
    doubled = s[:, :4] * 2
    centres = (doubled[:, :2] + table[:, :2]) * table[:, 4:]
    return np.concatenate([centres, np.square(doubled[:, 2:]) * table[:, 2:4]], axis=1)
