"""What was taken for what: a matrix of counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detector.analysis.evaluate import overlaps
from detector.types import Detections, LabelledPicture


def confusion(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections], classes: int, conf: float, iou: float = 0.5
) -> NDArray[np.int64]:
    """[classes + 1, classes + 1]: row = labelled class, column = found class; the last row is what was found where
    nothing is labelled, the last column what was labelled and not found.

    Detections with at least this score, best first, each take the free box that fits best, of whatever class. What
    falls on a box that is no target is not counted.
    """
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
    excused = _excused(picture, boxes, iou)
    free = np.ones(len(truth), bool)
    for row, class_id, excuse in zip(fits, class_ids.tolist(), excused.tolist(), strict=True):
        best = int(np.argmax(np.where(free, row, -1))) if free.any() else -1
        if best >= 0 and row[best] >= iou:
            free[best] = False
            counts[of_class[best], class_id] += 1
        elif not excuse:
            counts[-1, class_id] += 1
    counts[:, -1] += np.bincount(of_class[free], minlength=len(counts))


def _excused(picture: LabelledPicture, boxes: NDArray[np.float32], iou: float) -> NDArray[np.bool_]:
    """[m] whether a detection lies on a box that is no target."""
    ignored = overlaps(boxes, picture.boxes[picture.ignored & ~picture.crowd])
    crowd = overlaps(boxes, picture.boxes[picture.crowd], of_found=True)
    best: NDArray[np.float64] = np.concatenate([ignored, crowd], axis=1).max(axis=1, initial=0)
    excused: NDArray[np.bool_] = np.greater_equal(best, iou)
    return excused
