"""Match detections to labels, for average precision and for the confusion matrix.

Detections are matched in descending order of score. Each takes the free label with the highest IoU,
if the IoU reaches the threshold. A detection is right if its label is a box to find, wrong if it
gets no label, and neither if we ignore its label. Boxes to find are tried before ignored ones. An
``ignored`` box takes one detection, by IoU. A ``crowd`` takes any number of detections; the share
of the detection's area that is in the crowd replaces the IoU. COCO's tools do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.core.analysis.assignment import Boxes, overlaps
from detector.core.types import Detections, LabelledPicture

RIGHT, WRONG, NEITHER = 1, 0, -1
MAX_DETECTIONS = 100  # per picture and class; the best scores are kept


@dataclass(frozen=True, slots=True)
class Truth:
    """Labelled boxes of one class in one picture, xyxy [n, 4], with flags [n] for each box."""

    boxes: Boxes
    ignored: NDArray[np.bool_]
    crowd: NDArray[np.bool_]

    @property
    def wanted(self) -> int:
        return int((~(self.ignored | self.crowd)).sum())


@dataclass(frozen=True, slots=True)
class Matches:
    """Scores of detections, best first, and their ``outcomes``: RIGHT, WRONG or NEITHER.
    ``wanted``: number of boxes to find."""

    scores: NDArray[np.float64]
    outcomes: NDArray[np.int8]
    wanted: int


def judge(boxes: Boxes, scores: Boxes, truth: Truth, iou: float = 0.5) -> Matches:
    """Match the boxes [m, 4] with scores [m] of one picture and class. Ties keep their order."""
    scores = np.asarray(scores, np.float64)
    order = np.argsort(-scores, kind="stable")[:MAX_DETECTIONS]
    outcomes = np.full(len(order), WRONG, np.int8)
    if not len(truth.boxes):  # the most common case, when there are many classes
        return Matches(scores[order], outcomes, 0)
    best = np.asarray(boxes, np.float64).reshape(-1, 4)[order]
    fits = overlaps(best, truth.boxes)
    fits[:, truth.crowd] = overlaps(best, truth.boxes[truth.crowd], of_first=True)
    is_target = ~(truth.ignored | truth.crowd)
    free = np.ones(len(is_target), bool)
    for at, row in enumerate(fits):
        for kind, outcome in ((is_target, RIGHT), (~is_target, NEITHER)):
            match = _find_best(row, kind & free, iou)
            if match is not None:
                outcomes[at] = outcome
                free[match] = bool(truth.crowd[match])
                break
    return Matches(scores[order], outcomes, truth.wanted)


def _find_best(row: NDArray[np.float64], allowed: NDArray[np.bool_], iou: float) -> int | None:
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
    """Return counts [classes + 1, classes + 1]: labelled classes are rows, detected ones columns.
    The last row and column count boxes without a partner. From the best score down to ``conf``,
    each detection takes the free box with the highest IoU, whatever the classes of the two."""
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
    truth, true_ids = picture.boxes[target], picture.class_ids[target]
    fits = overlaps(boxes, truth)
    is_excused = _find_excused(picture, boxes, iou)
    free = np.ones(len(truth), bool)
    for row, class_id, excuse in zip(fits, class_ids.tolist(), is_excused.tolist(), strict=True):
        best = int(np.argmax(np.where(free, row, -1))) if free.any() else -1
        if best >= 0 and row[best] >= iou:
            free[best] = False
            counts[true_ids[best], class_id] += 1
        elif not excuse:
            counts[-1, class_id] += 1
    counts[:, -1] += np.bincount(true_ids[free], minlength=len(counts))


def _find_excused(
    picture: LabelledPicture, boxes: NDArray[np.float32], iou: float
) -> NDArray[np.bool_]:
    ignored = overlaps(boxes, picture.boxes[picture.ignored & ~picture.crowd])
    crowd = overlaps(boxes, picture.boxes[picture.crowd], of_first=True)
    best: NDArray[np.float64] = np.concatenate([ignored, crowd], axis=1).max(axis=1, initial=0)
    is_excused: NDArray[np.bool_] = np.greater_equal(best, iou)
    return is_excused
