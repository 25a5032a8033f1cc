"""Matching: which detection is which label, for average precision and for the confusion matrix.

A detection takes its best-fitting free label, the best score first. It is right if that label is a
box to find and their IoU is at least the threshold; each box counts once. It is neither right nor
wrong if the label is one to ignore, and wrong otherwise. Boxes to ignore are tried after the boxes
to find. There are two kinds: an ``ignored`` box is matched like any other, once and by IoU; a
``crowd`` takes any number of detections, by the share of the detection's own area that lies in it.
COCO's own tools do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.core.types import Detections, LabelledPicture

Floats = NDArray[np.float32] | NDArray[np.float64]

RIGHT, WRONG, NEITHER = 1, 0, -1
MAX_DETECTIONS = 100  # of a picture and class; the best ones count


@dataclass(frozen=True, slots=True)
class Truth:
    """Labelled boxes of one class in one picture, xyxy [n, 4]; ``ignored`` and ``crowd``: [n]."""

    boxes: Floats
    ignored: NDArray[np.bool_]
    crowd: NDArray[np.bool_]

    @property
    def wanted(self) -> int:
        return int((~(self.ignored | self.crowd)).sum())


@dataclass(frozen=True, slots=True)
class Matches:
    """Matched detections. ``scores``: best first, ``outcomes``: RIGHT, WRONG or NEITHER."""

    scores: NDArray[np.float64]
    outcomes: NDArray[np.int8]
    wanted: int


def overlaps(found: Floats, truth: Floats, of_found: bool = False) -> NDArray[np.float64]:
    """Return the IoU [m, n] of boxes xyxy, [m, 4] and [n, 4]; 0 for empty ones. ``of_found``: the
    intersection over the area of the found box, as for crowds."""
    a, b = np.asarray(found, np.float64)[:, None], np.asarray(truth, np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    both = np.maximum(sides, 0).prod(axis=-1)
    area_a, area_b = (np.maximum(x[..., 2:] - x[..., :2], 0).prod(axis=-1) for x in (a, b))
    whole = np.broadcast_to(area_a, both.shape) if of_found else area_a + area_b - both
    result: NDArray[np.float64] = np.divide(both, whole, out=np.zeros_like(both), where=whole > 0)
    return result


def judge(boxes: Floats, scores: Floats, truth: Truth, iou: float = 0.5) -> Matches:
    """Match the boxes [m, 4] with scores [m] of one picture and class. Ties keep their order."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")[:MAX_DETECTIONS]
    if not len(truth.boxes):  # the most common case, when there are many classes
        return Matches(
            np.asarray(scores, np.float64)[order], np.full(len(order), WRONG, np.int8), 0
        )
    best = np.asarray(boxes, np.float64).reshape(-1, 4)[order]
    fits = overlaps(best, truth.boxes)
    fits[:, truth.crowd] = overlaps(best, truth.boxes[truth.crowd], of_found=True)
    real = ~(truth.ignored | truth.crowd)
    free = np.ones(len(real), bool)
    outcomes = np.full(len(order), WRONG, np.int8)
    for at, row in enumerate(fits):
        for among, outcome in ((real, RIGHT), (~real, NEITHER)):
            match = _best(row, among & free, iou)
            if match is not None:
                outcomes[at] = outcome
                free[match] = bool(truth.crowd[match])
                break
    return Matches(np.asarray(scores, np.float64)[order], outcomes, truth.wanted)


def _best(row: NDArray[np.float64], allowed: NDArray[np.bool_], iou: float) -> int | None:
    """Return the index of the best fit among the allowed ones; None below ``iou``."""
    if not allowed.any():
        return None
    best = int(np.argmax(np.where(allowed, row, -1)))
    return best if row[best] >= iou else None


def confusion(
    pictures: Sequence[LabelledPicture],
    found: Sequence[Detections],
    classes: int,
    conf: float,
    iou: float = 0.5,
) -> NDArray[np.int64]:
    """Count [classes + 1, classes + 1]: labelled class by row, detected by column, last those
    without a partner. Detections from ``conf`` on, best first, take the free box that fits best."""
    counts = np.zeros((classes + 1, classes + 1), np.int64)
    for picture, one in zip(pictures, found, strict=True):
        keep = one.scores >= conf
        order = np.argsort(-one.scores[keep], kind="stable")
        _count(counts, picture, one.boxes[keep][order], one.class_ids[keep][order], iou)
    return counts


def _count(
    counts: NDArray[np.int64],
    picture: LabelledPicture,
    boxes: NDArray[np.float32],
    class_ids: NDArray[np.int64],
    iou: float,
) -> None:
    target = ~(picture.ignored | picture.crowd)
    truth, of_class = picture.boxes[target], picture.class_ids[target]
    fits = overlaps(boxes, truth)
    excused = _find_excused(picture, boxes, iou)
    free = np.ones(len(truth), bool)
    for row, class_id, excuse in zip(fits, class_ids.tolist(), excused.tolist(), strict=True):
        best = int(np.argmax(np.where(free, row, -1))) if free.any() else -1
        if best >= 0 and row[best] >= iou:
            free[best] = False
            counts[of_class[best], class_id] += 1
        elif not excuse:
            counts[-1, class_id] += 1
    counts[:, -1] += np.bincount(of_class[free], minlength=len(counts))


def _find_excused(
    picture: LabelledPicture, boxes: NDArray[np.float32], iou: float
) -> NDArray[np.bool_]:
    ignored = overlaps(boxes, picture.boxes[picture.ignored & ~picture.crowd])
    crowd = overlaps(boxes, picture.boxes[picture.crowd], of_found=True)
    best: NDArray[np.float64] = np.concatenate([ignored, crowd], axis=1).max(axis=1, initial=0)
    excused: NDArray[np.bool_] = np.greater_equal(best, iou)
    return excused
