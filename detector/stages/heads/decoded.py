"""Rows that the network decoded itself (YOLOv5, YOLOv7 and others exported with their boxes): [1, N, 5 + C]."""

from __future__ import annotations

import numpy as np

from detector.stages.heads.boxes import Floats, xyxy
from detector.types import Candidates


def decoded(outputs: list[Floats], conf: float) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``, in the order of the rows.

    ``outputs``: [1, N, 5 + C]: cx, cy, w, h in network pixels, objectness, class probabilities. Nothing returned
    shares memory with it.
    """
    rows = outputs[0][0]
    rows = rows[rows[:, 4] >= np.float32(conf)]  # NaN compares false
    class_ids = rows[:, 5:].argmax(axis=1)
    scores = rows[:, 4] * np.take_along_axis(rows[:, 5:], class_ids[:, None], axis=1)[:, 0]
    boxes = xyxy(rows[:, :4])
    keep = (scores >= np.float32(conf)) & np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def decoded_dense(outputs: list[Floats]) -> Floats:
    """They are dense already: a copy."""
    return outputs[0].copy()
