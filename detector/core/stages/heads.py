"""Decode raw maps with anchors into candidates.

    darknet_yolo  maps [1, A*(5+C), h, w], raw     darknet [yolo]
    anchor_maps   maps [1, A*(5+C), h, w], raw     YOLOv5, YOLOv7 (anchor_maps.py)

A: anchors; C: classes. readings.py reads all other outputs by their description. Each layout is a
function of the outputs of one picture (float32) and a confidence threshold. It returns the
candidates that reach the threshold: boxes xyxy in network pixels, not clipped. NaN counts as below
any threshold. Results share no memory with the outputs.

``LAYOUT_dense`` is the slow, plain version for comparisons. It returns every row, as [1, N, 5 + C]
float32: cx, cy, w, h in network pixels, objectness, class probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core.types import Candidates

Floats = NDArray[np.float32]

# Limit on logarithms of sizes. If an anchor's side is multiplied by e^30, the area still fits in
# float32. No picture has a side of e^30 pixels.
MAX_LOG_SIZE = np.float32(30)
FEW_CLASSES = 8  # with so few, finding a cell's best class is faster than copying the cell


def sigmoid(x: Floats) -> Floats:
    """Return 1 / (1 + e^-x) without overflow at either end."""
    e = np.exp(-np.abs(x))
    result: Floats = np.where(x >= 0, np.float32(1), e) / (1 + e)
    return result


def logit(p: float) -> float:
    """Return a little less than the logit of p, for a fast filter before the exact comparison."""
    if not 0 < p < 1:
        return -np.inf if p <= 0 else 15.0
    return float(np.log(p / (1 - p))) - 1e-3


@np.errstate(invalid="ignore", over="ignore")  # ``are_finite`` drops the NaN of inf - inf
def xyxy(boxes: Floats) -> Floats:
    """Convert cx, cy, w, h to x1, y1, x2, y2, [M, 4]."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def are_finite(boxes: Floats) -> NDArray[np.bool_]:
    """Return [M]: whether a box is finite and its area fits in float32."""
    below: NDArray[np.bool_] = np.abs(boxes) < np.float32(1e13)  # NaN and inf compare false
    return np.all(below, axis=1)  # type: ignore[no-any-return]


# Raw maps with anchors. We decode only cells whose objectness alone reaches the threshold, some 50
# of 2,535 in a street scene, which saves most exponentials. The cells of all maps are
# decoded together, because each numpy call takes about a microsecond.

Indices = NDArray[np.intp]


def no_candidates() -> Candidates:
    """Return boxes [0, 4], scores [0], class ids [0]. Heads return these early: cameras often see
    nothing, and a numpy call takes a microsecond even on an empty array."""
    return Candidates(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64))


class Survivors(NamedTuple):
    """M cells that reach the threshold, with their best class and its score."""

    at: Indices  # [M], positions in the list of all cells, map by map
    cells: Floats  # [M, 5+C], a copy
    class_ids: NDArray[np.int64]
    best: Floats  # [M]


def survivors(
    outputs: Sequence[Floats], anchors: int, threshold: float, *, anchors_last: bool
) -> Survivors | None:
    """Return the cells of maps [1, A*(5+C), h, w] whose objectness and best class both reach the
    threshold (NaN never does); None if there is none. Order: anchor, y, x, or with ``anchors_last``
    y, x, anchor.

    Neither filter drops a candidate: a product of two probabilities is never larger than either
    of them. With few classes we also filter by class before copying any cell: in a network without
    trained objectness, every cell passes the filter by objectness.
    """
    places, copies, first = [], [], 0
    for output in outputs:
        raw = output.reshape(anchors, output.shape[1] // anchors, -1)
        passed = raw[:, 4] >= threshold
        any_passed = passed.any()
        if any_passed and raw.shape[1] - 5 <= FEW_CLASSES:
            passed &= raw[:, 5:].max(axis=1) >= threshold
            any_passed = passed.any()
        if not any_passed:
            first += passed.size
            continue
        if anchors_last:
            at = np.flatnonzero(passed.T)
            cell, a = np.divmod(at, anchors)
        else:
            at = np.flatnonzero(passed)
            a, cell = np.divmod(at, raw.shape[2])
        places.append(at + first)
        copies.append(raw[a, :, cell])
        first += passed.size
    if not places:
        return None
    at, cells = np.concatenate(places), np.concatenate(copies)
    class_ids = cells[:, 5:].argmax(axis=1)
    best = cells[np.arange(len(cells)), class_ids + 5]
    alive = best >= threshold
    if alive.all():
        return Survivors(at, cells, class_ids, best)
    return Survivors(at[alive], cells[alive], class_ids[alive], best[alive])


def probabilities(raw: Sequence[Floats]) -> Floats:
    """Return the logistic of columns [M] or [M, n], joined to [M, columns]."""
    return sigmoid(np.column_stack(raw))


def join(parts: Sequence[Candidates]) -> Candidates:
    return Candidates(
        np.concatenate([part.boxes for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.class_ids for part in parts]),
    )


Sizes = tuple[tuple[int, int], ...]  # height and width of each map, in cells


def map_sizes(outputs: Sequence[Floats]) -> Sizes:
    return tuple([output.shape[2:] for output in outputs])


@dataclass(frozen=True, slots=True)
class YoloLayer:
    """The numbers for decoding the map [1, A*(5+C), h, w] of a darknet [yolo] layer."""

    anchors: tuple[tuple[float, float], ...]  # (width, height) of A anchors, network pixels
    classes: int
    cell_width: float  # network pixels per cell
    cell_height: float
    scale_x_y: float = 1.0  # stretches the range of centres, to reach a cell's edges
    # True: the network itself ends in a logistic, and sizes are (2 t)^2 instead of e^t.
    new_coords: bool = False


@np.errstate(invalid="ignore", over="ignore")  # ``keep`` drops inf and NaN of a broken network
def darknet_yolo(outputs: list[Floats], conf: float, layers: Sequence[YoloLayer]) -> Candidates:
    """Return candidates whose objectness x best class score reaches ``conf``, sorted by layer (as
    in the cfg), y, x, anchor. ``outputs``: one raw map [1, A*(5+C), h, w] float32 per layer. Boxes
    are xyxy network pixels, not clipped."""
    if len({(len(layer.anchors), layer.classes, layer.new_coords) for layer in layers}) > 1:
        return join(
            [
                darknet_yolo([output], conf, [layer])
                for output, layer in zip(outputs, layers, strict=True)
            ]
        )
    anchors, new_coords = len(layers[0].anchors), layers[0].new_coords
    threshold = conf if new_coords else logit(conf)
    surviving = survivors(outputs, anchors, threshold, anchors_last=True)
    if surviving is None:
        return no_candidates()
    at, cells, class_ids, best = surviving
    table = _darknet_table(tuple(layers), map_sizes(outputs))[at]
    if new_coords:
        centres, scores = cells[:, :2], cells[:, 4] * best
    else:
        s = probabilities((cells[:, :2], cells[:, 4], best))
        centres, scores = s[:, :2], s[:, 2] * s[:, 3]
    boxes = xyxy(_darknet_centres_sizes(centres, cells, table, new_coords))
    keep = (scores >= np.float32(conf)) & np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


@np.errstate(invalid="ignore", over="ignore")  # a broken network gives inf and NaN
def darknet_yolo_dense(outputs: list[Floats], layers: Sequence[YoloLayer]) -> Floats:
    """Decode every row as ``darknet_yolo`` does. Return [1, N, 5 + C] float32: cx, cy, w, h in
    network pixels, objectness, class probabilities; sorted by layer, y, x, anchor."""
    rows = []
    for output, layer in zip(outputs, layers, strict=True):
        raw = output.reshape(len(layer.anchors), layer.classes + 5, -1)
        cells = raw.transpose(2, 0, 1).reshape(-1, layer.classes + 5)
        s = cells if layer.new_coords else sigmoid(cells)
        table = _darknet_table((layer,), map_sizes([output]))
        boxes = _darknet_centres_sizes(s[:, :2], cells, table, layer.new_coords)
        rows.append(np.concatenate([boxes, s[:, 4:]], axis=1))
    return np.concatenate(rows)[None]


@lru_cache(64)
def _darknet_table(layers: tuple[YoloLayer, ...], sizes: Sizes) -> Floats:
    """Return [N, 8], a row for each anchor of each cell: column and row of the cell, width and
    height of the anchor, width and height of the cell, scale_x_y, (scale_x_y - 1) / 2."""
    rows = []
    for layer, (height, width) in zip(layers, sizes, strict=True):
        y, x, a = np.indices((height, width, len(layer.anchors))).reshape(3, -1)
        scale = np.float32(layer.scale_x_y)
        same = np.array([layer.cell_width, layer.cell_height, scale, (scale - 1) / 2], np.float32)
        rows.append(
            np.concatenate(
                [
                    np.stack([x, y], axis=1).astype(np.float32),
                    np.array(layer.anchors, np.float32)[a],
                    np.broadcast_to(same, (len(a), 4)),
                ],
                axis=1,
            )
        )
    return freeze(np.concatenate(rows))


def freeze(table: Floats) -> Floats:
    table.setflags(write=False)  # all callers share the cached table
    return table


def _darknet_centres_sizes(
    centres: Floats, cells: Floats, table: Floats, new_coords: bool
) -> Floats:
    """Return cx, cy, w, h [M, 4] in network pixels. ``centres`` [M, 2]: 0..1 in the cell;
    ``cells`` [M, 5+C]: raw numbers; ``table``: the rows of these cells."""
    if new_coords:
        sizes = np.square(np.clip(cells[:, 2:4], -1e6, 1e6)) * 4
    else:
        sizes = np.exp(np.minimum(cells[:, 2:4], MAX_LOG_SIZE))
    centres = (centres * table[:, 6:7] - table[:, 7:] + table[:, :2]) * table[:, 4:6]
    return np.concatenate([centres, sizes * table[:, 2:4]], axis=1)
