"""Finished detections: networks that need no NMS (YOLOv10, YOLO26), and exports that hold it.

    rows               [1, K, 6]  x1, y1, x2, y2, score, class
    batch-rows         [1, K, 7]  batch, x1, y1, x2, y2, class, score (YOLOv7)
    parts              boxes [1, K, 4], scores [1, K], classes [1, K]
    boxes-with-scores  [1, K, 5]  x1, y1, x2, y2, score; classes [1, K]

Boxes are in network pixels. Rows that fill a list up have a score of zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detector.stages.heads.boxes import Floats, sound
from detector.types import Candidates


def end_to_end(outputs: list[Floats], conf: float, *, form: str = "rows") -> Candidates:
    """The detections whose score reaches ``conf``, in their order."""
    boxes, scores, classes = _parts(outputs, form)
    keep = (scores >= np.float32(conf)) & (scores > 0) & np.isfinite(scores) & sound(boxes) & _ids(classes)
    return Candidates(boxes[keep], scores[keep], np.rint(classes[keep]).astype(np.int64))


@np.errstate(invalid="ignore", over="ignore")
def end_to_end_dense(outputs: list[Floats], *, form: str = "rows", classes: int) -> Floats:
    """[1, K, 5 + C]: the score as objectness, 1 for the row's class and 0 for the others."""
    boxes, scores, ids = _parts(outputs, form)
    rows = np.zeros((len(boxes), 5 + classes), np.float32)
    rows[:, :2], rows[:, 2:4] = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    rows[:, 4] = scores
    known = _ids(ids) & (ids < classes)
    rows[np.flatnonzero(known), 5 + np.rint(ids[known]).astype(int)] = 1
    return rows[None]


def _parts(outputs: list[Floats], form: str) -> tuple[Floats, Floats, Floats]:
    """Boxes [K, 4], scores [K], class ids [K] as floats."""
    first = outputs[0][0]
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
