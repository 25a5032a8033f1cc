"""Candidates of classes that are mapped before NMS: the head of ``eval``.

A detection run asks for the best class of a box. For average precision that is too little: every class of a box is a
detection of its own, and a class that several of the model's go into (vehicle: car, bus, truck, motorcycle) has the
highest of their scores. Mapped afterwards, a lorry found as truck and as bus would be found twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detector.stages.heads.boxes import Floats, xyxy
from detector.types import Candidates


def mapped(dense: Floats, conf: float, groups: Sequence[Sequence[int]]) -> Candidates:
    """``dense``: [1, N, 5 + C] cx, cy, w, h in network pixels, objectness, class probabilities not multiplied.

    ``groups``: for each mapped class the ids of those that go into it. One candidate for every row and mapped class
    whose objectness x highest probability reaches ``conf``; rows in order, classes in order.
    """
    rows = dense[0]
    rows = rows[rows[:, 4] >= np.float32(conf)]  # probabilities end at 1; NaN compares false
    columns = [rows[:, [5 + class_id for class_id in group]].max(axis=1, initial=0) for group in groups]
    with np.errstate(invalid="ignore", over="ignore"):
        scores = np.stack(columns, axis=1) * rows[:, 4:5]
        whole = np.isfinite(rows[:, :4]).all(axis=1, keepdims=True)
        at, class_ids = np.nonzero((scores >= np.float32(conf)) & np.isfinite(scores) & whole)
    return Candidates(xyxy(rows[at, :4]), scores[at, class_ids], class_ids.astype(np.int64))
