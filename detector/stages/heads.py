"""What each family of networks puts out, turned into candidates: the head layouts, side by side.

    layout        outputs                               networks
    anchor_maps   maps [1, A*(5+C), h, w], raw          YOLOv5, YOLOv7
    darknet_yolo  maps [1, A*(5+C), h, w], raw          darknet [yolo]
    decoded_rows  rows [1, N, 5 + C], decoded           exports of YOLOv5, YOLOv7 with their boxes
    yolox         rows [1, N, 5 + C], offsets in cells  YOLOX
    anchor_free   columns [1, 4 + C, N] or transposed   YOLOv8, 9, 11, 12: no objectness
    end_to_end    finished detections                   YOLOv10, YOLO26, exports that hold NMS
    queries       [1, Q, 4 + C], or scores and boxes    RT-DETR: needs no NMS
    corners       boxes [1, N, 1, 4] and scores         YOLOv4, exported by pytorch-YOLOv4

A, anchors; C, classes; N, cells of all maps; Q, queries. Each layout is a function of the outputs
of one picture (float32) and a confidence threshold, and returns the candidates that reach it: boxes
xyxy in network pixels, not clipped. NaN counts as below any threshold. Nothing that is returned
shares memory with the outputs.

``LAYOUT_dense`` is the plain twin for comparisons, not for speed: every row, [1, N, 5 + C] float32
of cx, cy, w, h in network pixels, objectness and class probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.types import Candidates

Floats = NDArray[np.float32]

# e^30 times any anchor squares without overflow in float32, and no picture has 1e13 pixels.
MAX_LOG_SIZE = np.float32(30)
FEW_CLASSES = 8  # the best one of every cell is then found faster than cells are copied


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x) without overflow at either end."""
    e = np.exp(-np.abs(x))
    result: Floats = np.where(x >= 0, np.float32(1), e) / (1 + e)
    return result


def logit(p: float) -> float:
    """Raw objectness at probability p, minus a margin: a sieve before the exact comparison."""
    if not 0 < p < 1:
        return -np.inf if p <= 0 else 15.0
    return float(np.log(p / (1 - p))) - 1e-3


@np.errstate(invalid="ignore", over="ignore")  # inf - inf of a broken network; ``sound`` drops it
def xyxy(boxes: Floats) -> Floats:
    """cx, cy, w, h -> x1, y1, x2, y2, [M, 4]."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def sound(boxes: Floats) -> NDArray[np.bool_]:
    """[M]: whether a box is finite and float32 can hold its area. No picture has 1e13 pixels a
    side.
    """
    below: NDArray[np.bool_] = np.abs(boxes) < np.float32(1e13)  # NaN and inf compare false
    return np.all(below, axis=1)  # type: ignore[no-any-return]


# Raw maps with anchors. Only cells whose objectness alone reaches the threshold are decoded, those
# of all maps together. In a street scene that is some 50 of 2,535: neither are the exponentials of
# the others computed, nor is each numpy call, which costs about a microsecond, made once a map.

Indices = NDArray[np.intp]


def no_candidates() -> Candidates:
    """No candidates: boxes [0, 4], scores [0], class ids [0]. Heads return early with them, because
    a numpy call on an empty array takes a microsecond too, and cameras often see nothing.
    """
    return Candidates(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64))


class Survivors(NamedTuple):
    """M cells, their best class and its number."""

    at: Indices  # [M], among the cells of all maps, one map after the other
    cells: Floats  # [M, 5+C], a copy
    class_ids: NDArray[np.int64]
    best: Floats  # [M]


def survivors(
    outputs: Sequence[Floats], anchors: int, threshold: float, *, anchors_last: bool
) -> Survivors | None:
    """Cells of maps [1, A*(5+C), h, w] whose objectness and best class both reach the threshold;
    NaN never does. None where there is no such cell.

    The second sieve is as safe as the first: the product of two probabilities is below each of
    them. Where classes are few it comes before anything is copied, because a network without
    trained objectness has all of its cells there. Cells of a map are counted, and come, by y, x,
    anchor, or by anchor, y, x.
    """
    places, found, first = [], [], 0
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
        found.append(raw[a, :, cell])
        first += passed.size
    if not places:
        return None
    at, cells = np.concatenate(places), np.concatenate(found)
    class_ids = cells[:, 5:].argmax(axis=1)
    best = cells[np.arange(len(cells)), class_ids + 5]
    alive = best >= threshold
    if alive.all():
        return Survivors(at, cells, class_ids, best)
    return Survivors(at[alive], cells[alive], class_ids[alive], best[alive])


def all_cells(outputs: Sequence[Floats], anchors: int, *, anchors_last: bool) -> Floats:
    """[N, 5 + C]: every cell of maps [1, A*(5+C), h, w], in the order of ``survivors``."""
    order = (2, 0, 1) if anchors_last else (0, 2, 1)
    rows = []
    for output in outputs:
        channels = output.shape[1] // anchors
        raw = output.reshape(anchors, channels, -1)
        rows.append(raw.transpose(order).reshape(-1, channels))
    return np.concatenate(rows)


def probabilities(raw: Sequence[Floats]) -> Floats:
    """[M, columns]: the logistic of columns [M] or [M, n], in one call."""
    return sigmoid(np.column_stack(raw))


def join(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of all layers, one layer after the other."""
    return Candidates(
        np.concatenate([part.boxes for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.class_ids for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class AnchoredLayer:
    """How a map [1, A*(5+C), h, w] becomes boxes."""

    anchors: tuple[tuple[float, float], ...]  # A pairs of width, height in network pixels
    classes: int
    stride: int  # network pixels per cell


def anchor_maps(outputs: list[Floats], conf: float, layers: Sequence[AnchoredLayer]) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``; by layer, anchor, y, x.

    ``outputs``: one raw map [1, A*(5+C), h, w] float32 per layer. Boxes are xyxy network pixels,
    not clipped. Numbers that are no numbers count as below any threshold. Nothing returned shares
    memory with ``outputs``.
    """
    if len({(len(layer.anchors), layer.classes) for layer in layers}) > 1:
        return join(
            [
                anchor_maps([output], conf, [layer])
                for output, layer in zip(outputs, layers, strict=True)
            ]
        )
    anchors = len(layers[0].anchors)
    found = survivors(outputs, anchors, logit(conf), anchors_last=False)
    if found is None:
        return no_candidates()
    at, cells, class_ids, best = found
    s = probabilities((cells[:, :5], best))
    scores = s[:, 4] * s[:, 5]
    boxes = xyxy(_anchored_centres_sizes(s, _anchored_table(tuple(layers), _sizes(outputs))[at]))
    keep = (scores >= np.float32(conf)) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def anchor_maps_dense(outputs: list[Floats], layers: Sequence[AnchoredLayer]) -> Floats:
    """Every row: [1, N, 5 + C] float32: cx, cy, w, h in network pixels, objectness, class
    probabilities.

    Rows by layer, anchor, y, x. The plain twin of ``anchor_maps``: for comparisons, not for speed.
    """
    table, columns = _anchored_table(tuple(layers), _sizes(outputs)), layers[0].classes + 5
    dense, first = np.empty((1, len(table), columns), np.float32), 0
    for output, layer in zip(outputs, layers, strict=True):
        # Anchor by anchor: the numbers stay in the processor's cache until they lie in their rows.
        for raw in output.reshape(len(layer.anchors), columns, -1):
            dense[0, first : first + raw.shape[1]] = sigmoid(raw).T
            first += raw.shape[1]
    dense[0, :, :4] = _anchored_centres_sizes(dense[0], table)
    return dense


Sizes = tuple[tuple[int, int], ...]  # height and width of each map, in cells


def _sizes(outputs: Sequence[Floats]) -> Sizes:
    return tuple([output.shape[2:] for output in outputs])


@lru_cache(64)
def _anchored_table(layers: tuple[AnchoredLayer, ...], sizes: Sizes) -> Floats:
    """[N, 5]: of every cell, column and row less a half, anchor's width and height, stride."""
    rows = []
    for layer, (height, width) in zip(layers, sizes, strict=True):
        a, y, x = np.indices((len(layer.anchors), height, width)).reshape(3, -1)
        origin = np.stack([x, y], axis=1).astype(np.float32) - np.float32(0.5)
        anchors = np.array(layer.anchors, np.float32)[a]
        strides = np.full((len(a), 1), layer.stride, np.float32)
        rows.append(np.concatenate([origin, anchors, strides], axis=1))
    return _shared(np.concatenate(rows))


def _anchored_centres_sizes(s: Floats, table: Floats) -> Floats:
    """cx, cy, w, h [M, 4] in network pixels of cells s [M, 4 or more], the logistics of the raw
    numbers; ``table``: their rows.

    Centre = (2s - 0.5 + cell) * stride, size = (2s)^2 * anchor.
    """
    doubled = s[:, :4] * 2
    centres = (doubled[:, :2] + table[:, :2]) * table[:, 4:]
    sizes = np.square(doubled[:, 2:]) * table[:, 2:4]
    return np.concatenate([centres, sizes], axis=1)


@dataclass(frozen=True, slots=True)
class YoloLayer:
    """One darknet [yolo] layer: how a map [1, A*(5+C), h, w] becomes boxes."""

    anchors: tuple[tuple[float, float], ...]  # A pairs of width, height in network pixels
    classes: int
    cell_width: float  # network pixels per cell
    cell_height: float
    scale_x_y: float = 1.0  # stretches the centre beyond its cell, so that its edge can be reached
    new_coords: bool = (
        False  # the network itself ends in a logistic; sizes are (2 t)^2 instead of e^t
    )


@np.errstate(invalid="ignore", over="ignore")  # a broken network's inf and NaN end in ``keep``
def darknet_yolo(outputs: list[Floats], conf: float, layers: Sequence[YoloLayer]) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``, layers in cfg order, each by
    y, x, anchor.

    ``outputs``: one raw map [1, A*(5+C), h, w] float32 per layer. Boxes are xyxy network pixels,
    not clipped. Numbers that are no numbers count as below any threshold. Nothing returned shares
    memory with ``outputs``.
    """
    if len({(len(layer.anchors), layer.classes, layer.new_coords) for layer in layers}) > 1:
        return join(
            [
                darknet_yolo([output], conf, [layer])
                for output, layer in zip(outputs, layers, strict=True)
            ]
        )
    anchors, new_coords = len(layers[0].anchors), layers[0].new_coords
    threshold = conf if new_coords else logit(conf)
    found = survivors(outputs, anchors, threshold, anchors_last=True)
    if found is None:
        return no_candidates()
    at, cells, class_ids, best = found
    table = _darknet_table(tuple(layers), _sizes(outputs))[at]
    if new_coords:
        centres, scores = cells[:, :2], cells[:, 4] * best
    else:
        s = probabilities((cells[:, :2], cells[:, 4], best))
        centres, scores = s[:, :2], s[:, 2] * s[:, 3]
    boxes = xyxy(_darknet_centres_sizes(centres, cells, table, new_coords))
    keep = (scores >= np.float32(conf)) & np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


@np.errstate(invalid="ignore", over="ignore")  # of a broken network
def darknet_yolo_dense(outputs: list[Floats], layers: Sequence[YoloLayer]) -> Floats:
    """Every row: [1, N, 5 + C] float32: cx, cy, w, h in network pixels, objectness, class
    probabilities.

    Rows by layer, y, x, anchor. The plain twin of ``darknet_yolo``: for comparisons, not for speed.
    """
    rows = []
    for output, layer in zip(outputs, layers, strict=True):
        cells = all_cells([output], len(layer.anchors), anchors_last=True)
        s = cells if layer.new_coords else sigmoid(cells)
        table = _darknet_table((layer,), _sizes([output]))
        boxes = _darknet_centres_sizes(s[:, :2], cells, table, layer.new_coords)
        rows.append(np.concatenate([boxes, s[:, 4:]], axis=1))
    return np.concatenate(rows)[None]


@lru_cache(64)
def _darknet_table(layers: tuple[YoloLayer, ...], sizes: Sizes) -> Floats:
    """[N, 8]: of every cell, column and row, anchor's width and height, width and height of the
    cell, scale_x_y, and what the scale adds on each side.
    """
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
    return _shared(np.concatenate(rows))


def _shared(table: Floats) -> Floats:
    table.setflags(write=False)  # all who ask get the same
    return table


def _darknet_centres_sizes(
    centres: Floats, cells: Floats, table: Floats, new_coords: bool
) -> Floats:
    """cx, cy, w, h [M, 4] in network pixels; ``centres`` [M, 2] in 0..1 of the cell, the raw
    ``cells`` [M, 5+C], and their rows of the table.
    """
    if new_coords:
        sizes = np.square(np.clip(cells[:, 2:4], -1e6, 1e6)) * 4
    else:
        sizes = np.exp(np.minimum(cells[:, 2:4], MAX_LOG_SIZE))
    centres = (centres * table[:, 6:7] - table[:, 7:] + table[:, :2]) * table[:, 4:6]
    return np.concatenate([centres, sizes * table[:, 2:4]], axis=1)


# Rows with an objectness: decoded by the network, or (YOLOX) still relative to their cells.


def objectness_first(
    rows: Floats, conf: float
) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.intp]]:
    """The rows of [N, 5 + C], probabilities from column 4 on, whose best score reaches ``conf``.

    The score is objectness x class probability.

    Returns (rows [M, 5 + C], a copy; scores [M]; class ids [M]; their places among the N). Classes
    are looked at only where the objectness alone reaches the threshold. Numbers that are no numbers
    count as below it.
    """
    at = np.flatnonzero(rows[:, 4] >= np.float32(conf))  # NaN compares false
    found = rows[at]
    class_ids = found[:, 5:].argmax(axis=1)
    best = found[np.arange(len(found)), class_ids + 5]
    with np.errstate(invalid="ignore", over="ignore"):
        scores = found[:, 4] * best
        keep = (scores >= np.float32(conf)) & np.isfinite(scores)
    return found[keep], scores[keep], class_ids[keep], at[keep]


def decoded_rows(outputs: list[Floats], conf: float) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``, in the order of the rows.

    ``outputs``: [1, N, 5 + C]: cx, cy, w, h in network pixels, objectness, class probabilities.
    Nothing returned shares memory with it.
    """
    rows, scores, class_ids, _ = objectness_first(outputs[0][0], conf)
    boxes = xyxy(rows[:, :4])
    keep = sound(boxes)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def decoded_rows_dense(outputs: list[Floats]) -> Floats:
    """A copy: the rows are dense already."""
    return outputs[0].copy()


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of an input of height x width pixels: maps by ``strides``, each by y, x."""

    height: int
    width: int
    strides: tuple[int, ...] = (8, 16, 32)


@cache
def yolox_cells(grid: Grid) -> Floats:
    """[N, 3]: column, row and stride of every cell."""
    maps = []
    for stride in grid.strides:
        y, x = np.indices((-(-grid.height // stride), -(-grid.width // stride))).reshape(2, -1)
        maps.append(np.stack([x, y, np.full_like(x, stride)], axis=1))
    return _shared(np.concatenate(maps).astype(np.float32))


def yolox(outputs: list[Floats], conf: float, *, grid: Grid) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``, in the order of the cells.

    ``outputs``: [1, N, 5 + C]: offsets x and y in cells, logarithms of width and height in cells,
    objectness and class probabilities (the network ends in their logistic).
    """
    rows, scores, class_ids, at = objectness_first(outputs[0][0], conf)
    boxes = xyxy(_yolox_centres_sizes(rows, yolox_cells(grid)[at]))
    keep = sound(boxes)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def yolox_dense(outputs: list[Floats], *, grid: Grid) -> Floats:
    """Every cell: [1, N, 5 + C] float32: cx, cy, w, h in network pixels, objectness, class
    probabilities.
    """
    raw = outputs[0][0]
    return np.concatenate([_yolox_centres_sizes(raw, yolox_cells(grid)), raw[:, 4:]], axis=1)[None]


@np.errstate(invalid="ignore", over="ignore")  # of a broken network; ``sound`` drops it
def _yolox_centres_sizes(rows: Floats, cells: Floats) -> Floats:
    """[M, 4] cx, cy, w, h in network pixels."""
    stride = cells[:, 2:]
    centres = (rows[:, :2] + cells[:, :2]) * stride
    sizes = np.exp(np.minimum(rows[:, 2:4], MAX_LOG_SIZE)) * stride
    return np.concatenate([centres, sizes], axis=1)


# One box per cell without an objectness, decoded by the network.


def anchor_free(outputs: list[Floats], conf: float, *, rows: bool = False) -> Candidates:
    """Candidates whose best class score reaches ``conf``, in the order of the cells.

    ``outputs``: [1, 4 + C, N]: cx, cy, w, h in network pixels, class probabilities; with ``rows``
    [1, N, 4 + C].
    """
    columns = _columns(outputs, rows)
    best = columns[4:].max(
        axis=0
    )  # contiguous rows: 80 classes of 8,400 cells in half a millisecond
    at = np.flatnonzero(best >= np.float32(conf))  # NaN compares false
    found = columns[:, at]
    boxes = xyxy(found[:4].T)
    keep = sound(boxes) & np.isfinite(best[at])
    return Candidates(boxes[keep], best[at][keep], found[4:].argmax(axis=0)[keep])


def anchor_free_dense(outputs: list[Floats], *, rows: bool = False) -> Floats:
    """Every cell: [1, N, 5 + C] with an objectness of 1."""
    cells = _columns(outputs, rows).T
    return np.concatenate(
        [cells[:, :4], np.ones((len(cells), 1), np.float32), cells[:, 4:]], axis=1
    )[None]


def _columns(outputs: list[Floats], rows: bool) -> Floats:
    """[4 + C, N], a view."""
    columns: Floats = outputs[0][0].T if rows else outputs[0][0]
    return columns


# Finished detections, in four forms:
#
#     rows               [1, K, 6]  x1, y1, x2, y2, score, class
#     batch-rows         [1, K, 7]  batch, x1, y1, x2, y2, class, score (YOLOv7)
#     parts              boxes [1, K, 4], scores [1, K], classes [1, K]
#     boxes-with-scores  [1, K, 5]  x1, y1, x2, y2, score; classes [1, K]
#     queries            [1, K, 6]  cx, cy, w, h in 0..1 of the input, score, class
#
# Other boxes are in network pixels. Rows that pad a list have a score of zero.


@np.errstate(invalid="ignore", over="ignore")  # of a broken network; ``sound`` drops it
def end_to_end(
    outputs: list[Floats], conf: float, *, form: str = "rows", size: tuple[int, int] = (0, 0)
) -> Candidates:
    """The detections whose score reaches ``conf``, in their order. ``size``: the input's width and
    height, for queries."""
    boxes, scores, classes = _parts(outputs, form, size)
    keep = (
        (scores >= np.float32(conf))
        & (scores > 0)
        & np.isfinite(scores)
        & sound(boxes)
        & _ids(classes)
    )
    return Candidates(boxes[keep], scores[keep], np.rint(classes[keep]).astype(np.int64))


@np.errstate(invalid="ignore", over="ignore")
def end_to_end_dense(
    outputs: list[Floats], *, form: str = "rows", size: tuple[int, int] = (0, 0), classes: int
) -> Floats:
    """[1, K, 5 + C]: the score as objectness, 1 for the row's class and 0 for the others."""
    boxes, scores, ids = _parts(outputs, form, size)
    rows = np.zeros((len(boxes), 5 + classes), np.float32)
    rows[:, :2], rows[:, 2:4] = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    rows[:, 4] = scores
    known = _ids(ids) & (ids < classes)
    rows[np.flatnonzero(known), 5 + np.rint(ids[known]).astype(int)] = 1
    return rows[None]


def _parts(
    outputs: list[Floats], form: str, size: tuple[int, int]
) -> tuple[Floats, Floats, Floats]:
    """Boxes [K, 4], scores [K], class ids [K] as floats."""
    first = outputs[0][0]
    if form == "queries":
        return xyxy(first[:, :4] * np.array(size * 2, np.float32)), first[:, 4], first[:, 5]
    if form == "rows":
        return first[:, :4].copy(), first[:, 4], first[:, 5]
    if form == "batch-rows":
        return first[:, 1:5].copy(), first[:, 6], first[:, 5]
    if form == "parts":
        return first.copy(), outputs[1][0], outputs[2][0]
    return first[:, :4].copy(), first[:, 4], outputs[1][0]


def _ids(classes: Floats) -> NDArray[np.bool_]:
    """Whether each is the number of a class."""
    valid: NDArray[np.bool_] = (classes > -0.5) & (classes < 1e6)
    return valid


# A fixed number of boxes in 0..1 of the input, each with a score per class.


@np.errstate(invalid="ignore", over="ignore")  # of a broken network; ``sound`` drops it
def queries(
    outputs: list[Floats], conf: float, *, width: int, height: int, logits: bool = False
) -> Candidates:
    """Queries whose best class score reaches ``conf``, in their order; one box a query.

    ``outputs``: [1, Q, 4 + C], or class scores [1, Q, C] and boxes [1, Q, 4]. Boxes are cx, cy, w,
    h in 0..1 of the input. ``logits``: the scores are raw, before the logistic.
    """
    boxes, scores = _apart(outputs)
    class_ids = scores.argmax(axis=1)
    best = np.take_along_axis(scores, class_ids[:, None], axis=1)[:, 0]
    best = sigmoid(best) if logits else best
    corners = xyxy(boxes * np.array([width, height] * 2, np.float32))
    keep = (best >= np.float32(conf)) & np.isfinite(best) & sound(corners)
    return Candidates(corners[keep], best[keep], class_ids[keep])


@np.errstate(invalid="ignore", over="ignore")  # of a broken network
def queries_dense(
    outputs: list[Floats], *, width: int, height: int, logits: bool = False
) -> Floats:
    """[1, Q, 5 + C] with an objectness of 1."""
    boxes, scores = _apart(outputs)
    scaled = boxes * np.array([width, height] * 2, np.float32)
    scores = sigmoid(scores) if logits else scores
    return np.concatenate([scaled, np.ones((len(boxes), 1), np.float32), scores], axis=1)[None]


def _apart(outputs: list[Floats]) -> tuple[Floats, Floats]:
    """Boxes [Q, 4] and scores [Q, C]."""
    if len(outputs) == 2:
        return outputs[1][0], outputs[0][0]
    return outputs[0][0][:, :4], outputs[0][0][:, 4:]


# Box corners in 0..1 of the input, beside a score per class that the objectness is in already.


@np.errstate(invalid="ignore", over="ignore")  # of a broken network; ``sound`` drops it
def corners(outputs: list[Floats], conf: float, *, width: int, height: int) -> Candidates:
    """Boxes whose best class score reaches ``conf``, in their order.

    ``outputs``: x1, y1, x2, y2 [1, N, 1, 4] in 0..1 of the input, and class scores [1, N, C].
    """
    boxes, scores = outputs[0].reshape(-1, 4), outputs[1][0]
    best = scores.max(axis=1)
    at = np.flatnonzero(best >= np.float32(conf))  # NaN compares false
    found = boxes[at] * np.array([width, height] * 2, np.float32)
    keep = sound(found) & np.isfinite(best[at])
    return Candidates(found[keep], best[at][keep], scores[at].argmax(axis=1)[keep])


@np.errstate(invalid="ignore", over="ignore")  # of a broken network
def corners_dense(outputs: list[Floats], *, width: int, height: int) -> Floats:
    """[1, N, 5 + C] with an objectness of 1."""
    scaled = outputs[0].reshape(-1, 4) * np.array([width, height] * 2, np.float32)
    first, last = scaled[:, :2], scaled[:, 2:]
    ones = np.ones((len(scaled), 1), np.float32)
    return np.concatenate([(first + last) / 2, last - first, ones, outputs[1][0]], axis=1)[None]
