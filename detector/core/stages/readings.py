"""Decode a detector's outputs, except raw maps, into candidates.

A ``Reading`` describes where boxes, scores and classes are in a network's outputs and what their
numbers mean. Each family of detectors has one, and a YAML file can describe another
(models/description.py). Two functions read outputs with a ``Reading``:

    read_rows   a score for each class in every row          YOLO, DETR, PP-YOLOE, NanoDet ...
    read_list   finished detections, each with its class     NMS inside, or none needed

Each takes the outputs of one picture (float32, a leading axis of 1) and a confidence threshold. It
returns the candidates that reach the threshold: boxes xyxy in network pixels, not clipped. NaN
counts as below any threshold. Results share no memory with the outputs.

``rows_dense`` and ``list_dense`` are the slow, plain versions for comparisons. They return every
row, as [1, N, 5 + C] float32: cx, cy, w, h in network pixels, objectness, class probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from detector.core.stages.heads import MAX_LOG_SIZE, are_finite, logit, no_candidates, sigmoid, xyxy
from detector.core.types import Candidates

Floats = NDArray[np.float32]

# A box's numbers: x1 y1 x2 y2; left, top, width, height; centre x y, width, height; y1 x1 y2 x2
FORMS = ("xyxy", "xywh", "cxcywh", "yxyx")
VALUES = ("probabilities", "logits", "softmax")
BACKGROUNDS = ("none", "first", "last")
MEANS = ("product", "geometric")
CELL_KINDS = ("offsets", "linear", "distances")
MOST_CLASSES = 1_000_000  # larger class numbers are clipped to this
NOT_WHOLE = -MOST_CLASSES - 1  # replaces a fractional class number
WHOLE = 0.01  # tolerance for a whole class number


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of output number ``output``: ``count`` columns from ``first`` on (None: all the
    rest). ``across``: the output is [1, columns, N], not [1, N, columns]. An output [1, N] is one
    column."""

    output: int = 0
    first: int = 0
    count: int | None = None
    across: bool = False


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows that belong to the cells of maps, in order of ``strides``, then y, x. ``kind`` says what
    their box columns mean:

    "offsets"    x and y from the cell's point, and logarithms of width and height, in cells (YOLOX)
    "linear"     the same, but with width and height instead of their logarithms (BlazeFace)
    "distances"  from the cell's point to left, top, right and bottom, in cells. With several
                 ``bins``, each is the mean of 0, 1, 2 ... ``bins`` - 1, weighted by the softmax of
                 ``bins`` columns (generalised focal loss, arXiv 2006.04388)

    ``centre``: position of a cell's point inside the cell, 0 to 1. ``anchors``: consecutive rows
    per cell. ``sizes``: used instead of ``anchors`` for SSD. For each stride, it lists a cell's
    priors in pixels. A prior is (width, height), or the side of a square. Offsets are then in units
    of priors, not of cells. ``variances``: factors on x and y, and on width and height.
    """

    kind: str
    height: int  # height of the input, pixels
    width: int
    strides: tuple[int, ...]
    bins: int = 1
    centre: float = 0.0
    anchors: int = 1
    sizes: tuple[tuple[float | tuple[float, float], ...], ...] = ()
    variances: tuple[float, float] = (1.0, 1.0)

    @property
    def boxes(self) -> tuple[int, ...]:
        """The number of rows per cell, for each stride."""
        return tuple(map(len, self.sizes)) or (self.anchors,) * len(self.strides)

    @property
    def rows(self) -> int:
        sides = ((-(-self.height // s), -(-self.width // s)) for s in self.strides)
        return sum(y * x * boxes for (y, x), boxes in zip(sides, self.boxes, strict=True))


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a network's outputs. ``unit``: factors from a box's x and y to network pixels:
    (1, 1) for boxes in pixels, (W, H) for boxes in 0..1. ``background``: which column of scores is
    the background. In a list of finished detections, with "first", class ``first_class`` - 1 is the
    background. ``several``: a row yields a detection for each class that reaches the threshold, not
    only for the best. ``objectness_mean``: a score is the "product" of objectness and class
    probability, or their "geometric" mean. ``classes``: only in a list of finished detections.
    ``first_class``: the number of the first class name. ``count``: the output with the number of
    used rows."""

    boxes: Columns
    scores: Columns
    form: str = "cxcywh"
    unit: tuple[float, float] = (1.0, 1.0)
    values: str = "probabilities"
    background: str = "none"
    several: bool = False
    objectness: Columns | None = None
    objectness_mean: str = "product"
    cells: Cells | None = None
    classes: Columns | None = None
    first_class: int = 0
    count: int | None = None


def view(outputs: list[Floats], columns: Columns) -> Floats:
    """Return the columns as a view, [N, columns]."""
    output = outputs[columns.output]
    if output.ndim == 2:  # [1, N]: one column
        return output.reshape(-1, 1)
    table: Floats = output.reshape(-1, output.shape[-1]) if output.ndim > 3 else output[0]
    table = table.T if columns.across else table
    end = None if columns.count is None else columns.first + columns.count
    view: Floats = table[:, columns.first : end]
    return view


def _drop_background(scores: Floats, background: str) -> Floats:
    if background == "none":
        return scores
    view: Floats = scores[:, 1:] if background == "first" else scores[:, :-1]
    return view


# Rows with a score for each class


@np.errstate(invalid="ignore", over="ignore")  # ``are_finite`` drops inf and NaN
def read_rows(outputs: list[Floats], conf: float, *, reading: Reading) -> Candidates:
    """Return the rows whose best class score reaches ``conf``, in order; with ``reading.several``,
    a candidate for each class that reaches it. A score includes the objectness, if any."""
    at, class_ids, scores = _select(outputs, conf, reading)
    if not len(at):
        return no_candidates()
    boxes = _to_corners(view(outputs, reading.boxes)[at], at, reading)
    keep = are_finite(boxes)
    if keep.all():
        return Candidates(boxes, scores, class_ids)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def _select(
    outputs: list[Floats], conf: float, reading: Reading
) -> tuple[NDArray[np.intp], NDArray[np.int64], Floats]:
    """Return the rows [M] that reach the threshold, the class of each [M], and its score [M]."""
    scores = view(outputs, reading.scores)
    threshold = np.float32(conf)
    geometric = reading.objectness_mean == "geometric"
    lowest = conf * conf if geometric else conf  # each factor must reach it: the other is at most 1
    least = np.float32(logit(lowest) if reading.values == "logits" else lowest)
    if reading.objectness is not None:  # drops most rows before we read their classes
        objectness = view(outputs, reading.objectness)[:, 0]
        rows = np.flatnonzero(objectness >= least)
        scores, factors = scores[rows], objectness[rows]
        if reading.values == "logits":
            factors = sigmoid(factors)
    else:
        rows, factors = None, None
    if reading.values == "softmax":
        scores = _softmax(scores)
    classes = _drop_background(scores, reading.background)
    if reading.several:
        at, class_ids = np.nonzero(classes >= least)
        best = classes[at, class_ids]
    else:
        at, class_ids, best = _select_best(classes, least)
    best = sigmoid(best) if reading.values == "logits" else best
    if factors is not None:
        best = best * factors[at]
        best = np.sqrt(best) if geometric else best
    keep = (best >= threshold) & np.isfinite(best)
    at = at[keep] if rows is None else rows[at[keep]]
    return at, class_ids[keep].astype(np.int64, copy=False), best[keep]


def _select_best(
    classes: Floats, threshold: np.float32
) -> tuple[NDArray[np.intp], NDArray[np.int64], Floats]:
    """Return the rows whose best class reaches the threshold, that class, and its value. Only these
    rows need an argmax. The maximum takes half a millisecond for 80 classes of 8,400 cells."""
    if not classes.shape[0] or not classes.shape[1]:
        return np.empty(0, np.intp), np.empty(0, np.int64), np.empty(0, np.float32)
    best = classes.max(axis=1)
    at = np.flatnonzero(best >= threshold)  # NaN compares false
    return at, classes[at].argmax(axis=1), best[at]


def _softmax(scores: Floats) -> Floats:
    e = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    result: Floats = e / e.sum(axis=1, keepdims=True)
    return result


def _to_corners(boxes: Floats, at: NDArray[np.intp], reading: Reading) -> Floats:
    """Return a copy of the boxes of rows ``at``, xyxy [M, 4] in network pixels."""
    if reading.cells is not None:
        return _decode_cells(boxes, at, reading.cells)
    form = reading.form
    if form == "cxcywh":
        corners = xyxy(boxes)
    elif form == "xywh":
        corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:4]], axis=1)
    else:
        corners = boxes[:, [1, 0, 3, 2]] if form == "yxyx" else boxes.copy()
    if reading.unit != (1.0, 1.0):
        corners = corners * np.array(reading.unit * 2, np.float32)
    return corners


def _decode_cells(boxes: Floats, at: NDArray[np.intp], cells: Cells) -> Floats:
    if cells.kind != "distances":
        return xyxy(_decode_offsets(boxes, at, cells))
    places = cell_places(cells)[at]
    points, stride = places[:, :2], places[:, 2:3]
    weights = _softmax(boxes.reshape(-1, cells.bins)) if cells.bins > 1 else boxes.reshape(-1, 1)
    steps = np.arange(cells.bins, dtype=np.float32) if cells.bins > 1 else np.ones(1, np.float32)
    sides = (weights @ steps).reshape(-1, 4)
    return np.concatenate([points - sides[:, :2], points + sides[:, 2:]], axis=1) * stride


def _decode_offsets(boxes: Floats, at: NDArray[np.intp], cells: Cells) -> Floats:
    """Return cx, cy, w, h [M, 4] in network pixels."""
    places = cell_places(cells)[at]
    points, stride, priors = places[:, :2], places[:, 2:3], places[:, 3:]
    shift, growth = (np.float32(factor) for factor in cells.variances)
    sizes = boxes[:, 2:4] * growth
    if cells.kind == "offsets":
        sizes = np.exp(np.minimum(sizes, MAX_LOG_SIZE))
    return np.concatenate([points * stride + boxes[:, :2] * shift * priors, sizes * priors], axis=1)


@cache
def cell_places(cells: Cells) -> Floats:
    """Return [N, 5] for every row: x and y of its point in cells, the stride, and width and height
    of its prior in pixels. The array is read-only."""
    maps = []
    for at, stride in enumerate(cells.strides):
        sizes = cells.sizes[at] if cells.sizes else (stride,) * cells.anchors
        priors = np.array([np.broadcast_to(size, 2) for size in sizes])
        y, x = np.indices((-(-cells.height // stride), -(-cells.width // stride))).reshape(2, -1)
        points = np.stack([x + cells.centre, y + cells.centre, np.full_like(x, stride)], axis=1)
        rows = np.repeat(points, len(priors), axis=0)
        maps.append(np.concatenate([rows, np.tile(priors, (len(points), 1))], axis=1))
    places = np.concatenate(maps).astype(np.float32)
    places.setflags(write=False)  # all callers share the cached array
    return places


@np.errstate(invalid="ignore", over="ignore")  # a broken network gives inf and NaN
def rows_dense(outputs: list[Floats], *, reading: Reading) -> Floats:
    """Decode every row. Return [1, N, 5 + C], with an objectness of 1 if the network has none."""
    scores = view(outputs, reading.scores)
    if reading.values == "softmax":
        scores = _softmax(scores)
    scores = _drop_background(scores, reading.background)
    boxes = view(outputs, reading.boxes)
    if reading.objectness is None:
        objectness = np.ones((len(scores), 1), np.float32)
    else:
        objectness = view(outputs, reading.objectness)
    if reading.values == "logits":
        scores = sigmoid(scores)
        objectness = objectness if reading.objectness is None else sigmoid(objectness)
    if reading.objectness_mean == "geometric":
        scores, objectness = np.sqrt(scores), np.sqrt(objectness)
    sizes = _to_centres_sizes(boxes, np.arange(len(boxes)), reading)
    return np.concatenate([sizes, objectness, scores], axis=1)[None]


def _to_centres_sizes(boxes: Floats, at: NDArray[np.intp], reading: Reading) -> Floats:
    """Return cx, cy, w, h [M, 4] in network pixels; boxes in this form are only scaled."""
    if reading.cells is not None and reading.cells.kind != "distances":
        return _decode_offsets(boxes, at, reading.cells)
    if reading.form == "cxcywh" and reading.cells is None:
        return boxes * np.array(reading.unit * 2, np.float32)
    corners = _to_corners(boxes, at, reading)
    low, high = corners[:, :2], corners[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], axis=1)


# Finished detections


@np.errstate(invalid="ignore", over="ignore")  # ``are_finite`` drops inf and NaN
def read_list(outputs: list[Floats], conf: float, *, reading: Reading) -> Candidates:
    """Return the detections whose score reaches ``conf``, in order. Padding rows (score 0, or past
    the count) are dropped. A class may be any number, even ``NOT_WHOLE``: doubt.py checks it."""
    boxes, scores, classes = _read_finished(outputs, reading)
    keep = (scores >= np.float32(conf)) & (scores > 0) & np.isfinite(scores) & are_finite(boxes)
    keep &= ~np.isnan(classes)
    if reading.background == "first":
        keep &= np.rint(classes) != -1
    return Candidates(boxes[keep], scores[keep], _round_classes(classes[keep]))


@np.errstate(invalid="ignore", over="ignore")
def list_dense(outputs: list[Floats], *, reading: Reading, classes: int) -> Floats:
    """Return [1, K, 5 + C]: the score as objectness, then 1 for the row's class, 0 for others."""
    boxes, scores, ids = _read_finished(outputs, reading)
    rows = np.zeros((len(boxes), 5 + classes), np.float32)
    rows[:, :2], rows[:, 2:4] = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    rows[:, 4] = scores
    numbers = _round_classes(ids)
    known = (numbers >= 0) & (numbers < classes)
    rows[np.flatnonzero(known), 5 + numbers[known]] = 1
    return rows[None]


def _read_finished(outputs: list[Floats], reading: Reading) -> tuple[Floats, Floats, Floats]:
    """Return boxes [K, 4] in network pixels, scores [K], class ids [K] as floats."""
    assert reading.classes is not None
    boxes = view(outputs, reading.boxes)
    scores = view(outputs, reading.scores)[:, 0]
    classes = view(outputs, reading.classes)[:, 0] - np.float32(reading.first_class)
    if reading.values == "logits":
        scores = sigmoid(scores)
    if reading.count is not None:
        used = outputs[reading.count].reshape(-1)[0]
        rows = int(np.clip(np.nan_to_num(used), 0, len(boxes)))
        boxes, scores, classes = boxes[:rows], scores[:rows], classes[:rows]
    return _to_corners(boxes, np.arange(len(boxes)), reading), scores, classes


def _round_classes(classes: Floats) -> NDArray[np.int64]:
    """Round to whole numbers of at most ``MOST_CLASSES``; ``NOT_WHOLE`` for fractions and NaN."""
    limited = np.clip(classes, -MOST_CLASSES, MOST_CLASSES)
    nearest = np.rint(limited)
    near = np.abs(limited - nearest) <= WHOLE
    numbers: NDArray[np.int64] = np.where(near, nearest, np.float32(NOT_WHOLE)).astype(np.int64)
    return numbers
