"""One box a cell without objectness, decoded by the network (YOLOv8, 9, 11, 12): [1, 4 + C, N], or its transpose."""

from __future__ import annotations

import numpy as np

from detector.stages.heads.boxes import Floats, sound, xyxy
from detector.types import Candidates


def anchor_free(outputs: list[Floats], conf: float, *, rows: bool = False) -> Candidates:
    """Candidates whose best class score reaches ``conf``, in the order of the cells.

    ``outputs``: [1, 4 + C, N]: cx, cy, w, h in network pixels, class probabilities; with ``rows`` [1, N, 4 + C].
    """
    columns = _columns(outputs, rows)
    best = columns[4:].max(axis=0)  # contiguous rows: 80 classes of 8,400 cells in half a millisecond
    at = np.flatnonzero(best >= np.float32(conf))  # NaN compares false
    found = columns[:, at]
    boxes = xyxy(found[:4].T)
    keep = sound(boxes) & np.isfinite(best[at])
    return Candidates(boxes[keep], best[at][keep], found[4:].argmax(axis=0)[keep])


def anchor_free_dense(outputs: list[Floats], *, rows: bool = False) -> Floats:
    """Every cell: [1, N, 5 + C] with an objectness of 1."""
    cells = _columns(outputs, rows).T
    return np.concatenate([cells[:, :4], np.ones((len(cells), 1), np.float32), cells[:, 4:]], axis=1)[None]


def _columns(outputs: list[Floats], rows: bool) -> Floats:
    """[4 + C, N], a view."""
    columns: Floats = outputs[0][0].T if rows else outputs[0][0]
    return columns
