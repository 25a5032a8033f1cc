"""Reduce candidates to detections by greedy non-maximum suppression, per class or over all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detector.core.stages.heads import Floats, xyxy
from detector.core.types import Candidates, Detections

# Candidates are taken in blocks of this size, best first. Each is compared with those in its block
# and with survivors of earlier blocks, not with all. 256 x 256 float32 fits in a core's L2 cache.
BLOCK = 256


def nms(
    candidates: Candidates,
    *,
    iou: float | None,
    max_det: int,
    conf: float = 0.0,
    agnostic: bool = False,
    classes: Sequence[int] | None = None,
    names: tuple[str, ...] = (),
) -> Detections:
    """Run greedy NMS: the best remaining box suppresses all later boxes of its class (with
    ``agnostic``, of any class) whose IoU with it is above ``iou``.

    ``iou`` None: nothing is suppressed, for networks whose boxes are final. ``classes``: candidates
    of other class ids are dropped first. The lower index wins a tie. At most ``max_det`` are
    returned, best first; ``Detections.cut`` counts the others that reach ``conf``. Boxes stay in
    network pixels, unclipped.
    """
    boxes, scores, class_ids = candidates
    if not len(scores):
        return Detections(boxes, scores, class_ids, names)
    if classes is not None:
        selected = np.isin(class_ids, classes)
        boxes, scores, class_ids = boxes[selected], scores[selected], class_ids[selected]
    order = np.argsort(-scores, kind="stable")
    boxes, class_ids = boxes[order], class_ids[order]
    groups = np.zeros_like(class_ids) if agnostic else class_ids
    if iou is None:
        kept = np.arange(len(boxes))
    else:
        kept = (
            _greedy(boxes, groups, iou)
            if len(boxes) <= BLOCK
            else _greedy_by_group(boxes, groups, iou)
        )
    scores = scores[order][kept]
    cut = max(0, int(np.count_nonzero(scores >= conf)) - max_det)
    kept, scores = kept[:max_det], scores[:max_det]
    return Detections(boxes[kept], scores, class_ids[kept], names, cut)


def _greedy_by_group(
    boxes: NDArray[np.float32], groups: NDArray[np.int64], iou: float
) -> NDArray[np.intp]:
    """Return the result of ``_greedy``, faster for thousands of boxes (``eval``)."""
    kept = []
    for group in np.unique(groups):
        members = np.nonzero(groups == group)[0]
        kept.append(members[_greedy(boxes[members], groups[members], iou)])
    return np.sort(np.concatenate(kept))


def _greedy(boxes: NDArray[np.float32], groups: NDArray[np.int64], iou: float) -> NDArray[np.intp]:
    """Return surviving indexes, ascending. ``boxes`` [N, 4]: best first. ``groups`` [N]."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept = np.zeros(0, np.intp)
    for start in range(0, len(boxes), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(boxes)))
        if len(kept):
            block = block[~_suppresses(kept, block, boxes, areas, groups, iou).any(axis=0)]
        suppresses = np.triu(_suppresses(block, block, boxes, areas, groups, iou), 1)
        alive, spares = np.ones(len(block), bool), ~suppresses
        for i in np.flatnonzero(suppresses.any(axis=1)).tolist():
            if alive[i]:
                alive &= spares[i]
        kept = np.concatenate([kept, block[alive]])
    return kept


def _suppresses(
    first: NDArray[np.intp],
    second: NDArray[np.intp],
    boxes: NDArray[np.float32],
    areas: NDArray[np.float32],
    groups: NDArray[np.int64],
    iou: float,
) -> NDArray[np.bool_]:
    """Return [len(first), len(second)]: whether a pair is of one group and its IoU is > ``iou``.
    Empty boxes suppress nothing."""
    # Make columns contiguous, because each is read once per row of the result.
    a = np.ascontiguousarray(boxes[first].T)[:, :, None]
    b = np.ascontiguousarray(boxes[second].T)[:, None]
    width = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    height = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    intersection = np.maximum(width, 0) * np.maximum(height, 0)
    union = areas[first][:, None] + areas[second][None] - intersection
    same = groups[first][:, None] == groups[second][None]
    suppressed: NDArray[np.bool_] = same & (intersection > np.float32(iou) * union)
    return suppressed


def map_classes(dense: Floats, conf: float, groups: Sequence[Sequence[int]]) -> Candidates:
    """Return candidates whose classes are mapped before NMS. ``eval`` uses this as the head.

    Average precision needs every class of a box. A class may combine several classes of the model
    (vehicle: car, bus, truck, motorcycle); its score is then the highest of theirs. If classes were
    mapped after NMS, a lorry detected as truck and as bus would count twice.

    ``dense``: [1, N, 5 + C]: cx, cy, w, h in network pixels, objectness, class probabilities (not
    multiplied). ``groups``: the model's ids for each mapped class. A candidate is a pair (row,
    mapped class) whose objectness x highest probability reaches ``conf``. Rows stay in order.
    """
    rows = dense[0]
    rows = rows[rows[:, 4] >= np.float32(conf)]  # probabilities are at most 1; drops NaN, too
    columns = [
        rows[:, [5 + class_id for class_id in group]].max(axis=1, initial=0) for group in groups
    ]
    with np.errstate(invalid="ignore", over="ignore"):
        scores = np.stack(columns, axis=1) * rows[:, 4:5]
        whole = np.isfinite(rows[:, :4]).all(axis=1, keepdims=True)
        at, class_ids = np.nonzero((scores >= np.float32(conf)) & np.isfinite(scores) & whole)
    return Candidates(xyxy(rows[at, :4]), scores[at, class_ids], class_ids.astype(np.int64))
