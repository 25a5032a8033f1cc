"""Objectness first, for maps with anchors: only cells whose objectness alone reaches the threshold are decoded.

On a street scene that is some 50 of 2,535, so the exponentials of all the others are never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.stages.heads.boxes import Floats
from detector.types import Candidates

Indices = NDArray[np.intp]


class Survivors(NamedTuple):
    """M cells of one map: which (anchor, row, column), their numbers, their best class and its number."""

    a: Indices
    y: Indices
    x: Indices
    cells: Floats  # [M, 5+C], a copy
    class_ids: NDArray[np.int64]
    best: Floats  # [M]


def cells_of(output: Floats, anchors: int) -> Floats:
    """A map [1, A*(5+C), h, w] as [A, 5+C, h, w], a view."""
    cells: Floats = output[0].reshape(anchors, -1, *output.shape[2:])
    return cells


def survivors(raw: Floats, threshold: float, *, anchors_last: bool) -> Survivors:
    """Cells of ``raw`` [A, 5+C, h, w] whose objectness and best class both reach the threshold; NaN never does.

    The second sieve is as safe as the first: the product of two probabilities is below each of them. A network
    without trained objectness has all of its cells there. Order: y, x, anchor, or anchor, y, x.
    """
    passed = raw[:, 4] >= threshold
    if anchors_last:
        y, x, a = np.nonzero(passed.transpose(1, 2, 0))
    else:
        a, y, x = np.nonzero(passed)
    cells = raw[a, :, y, x]
    class_ids = cells[:, 5:].argmax(axis=1)
    best = np.take_along_axis(cells[:, 5:], class_ids[:, None], axis=1)[:, 0]
    alive = best >= threshold
    return Survivors(a[alive], y[alive], x[alive], cells[alive], class_ids[alive], best[alive])


def joined(parts: Sequence[Candidates]) -> Candidates:
    """The layers' candidates, one layer after the other."""
    if len(parts) == 1:
        return parts[0]
    return Candidates(
        np.concatenate([part.boxes for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.class_ids for part in parts]),
    )
