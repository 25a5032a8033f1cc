"""Rows that the network decoded itself (YOLOv5, YOLOv7 and others exported with their boxes): [1, N, 5 + C]."""

from __future__ import annotations

from detector.stages.heads.boxes import Floats, objectness_first, sound, xyxy
from detector.types import Candidates


def decoded(outputs: list[Floats], conf: float) -> Candidates:
    """Candidates whose objectness x best class score reaches ``conf``, in the order of the rows.

    ``outputs``: [1, N, 5 + C]: cx, cy, w, h in network pixels, objectness, class probabilities. Nothing returned
    shares memory with it.
    """
    rows, scores, class_ids, _ = objectness_first(outputs[0][0], conf)
    boxes = xyxy(rows[:, :4])
    keep = sound(boxes)
    return Candidates(boxes[keep], scores[keep], class_ids[keep])


def decoded_dense(outputs: list[Floats]) -> Floats:
    """They are dense already: a copy."""
    return outputs[0].copy()
