"""RT-DETR's queries: a fixed number of boxes in 0..1, each with a score a class. They need no NMS."""

from __future__ import annotations

import numpy as np

from detector.stages.heads.boxes import Floats, sigmoid, sound, xyxy
from detector.types import Candidates


@np.errstate(invalid="ignore", over="ignore")  # of a broken network; ``sound`` drops it
def queries(outputs: list[Floats], conf: float, *, width: int, height: int, logits: bool = False) -> Candidates:
    """Queries whose best class score reaches ``conf``, in their order; one box a query.

    ``outputs``: [1, Q, 4 + C], or class scores [1, Q, C] and boxes [1, Q, 4]. Boxes are cx, cy, w, h in 0..1 of the
    input. ``logits``: the scores are raw, before the logistic.
    """
    boxes, scores = _apart(outputs)
    class_ids = scores.argmax(axis=1)
    best = np.take_along_axis(scores, class_ids[:, None], axis=1)[:, 0]
    best = sigmoid(best) if logits else best
    corners = xyxy(boxes * np.array([width, height] * 2, np.float32))
    keep = (best >= np.float32(conf)) & np.isfinite(best) & sound(corners)
    return Candidates(corners[keep], best[keep], class_ids[keep])


def queries_dense(outputs: list[Floats], *, width: int, height: int, logits: bool = False) -> Floats:
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
