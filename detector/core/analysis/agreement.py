"""Measure how far two engines, precisions or versions agree on the detections in the same frames.

Boxes of the same class are paired greedily, in descending order of IoU. The result is the same if
the reference and the other side are exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detector.core.analysis.assignment import overlaps
from detector.core.types import Detections


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well the boxes of two sides match. ``share``: 2 x matched / (reference + other), or 1.0
    without boxes. The means over matched pairs are NaN without pairs. Differences are absolute."""

    frames: int
    reference: int
    other: int
    matched: int
    share: float
    mean_iou: float
    mean_score_diff: float


def agreement(
    reference: Sequence[Detections], other: Sequence[Detections], iou: float = 0.5
) -> Agreement:
    """Compare the Detections of the same frames. Raises ValueError if the lengths differ."""
    if len(reference) != len(other):
        raise ValueError(
            f"agreement needs the same frames on both sides; got {len(reference)} and {len(other)}"
        )
    ious: list[float] = []
    differences: list[float] = []
    for a, b in zip(reference, other, strict=True):
        for i, j, overlap in match_pairs(a, b, iou):
            ious.append(overlap)
            differences.append(abs(float(a.scores[i]) - float(b.scores[j])))
    count_a, count_b = sum(map(len, reference)), sum(map(len, other))
    return Agreement(
        frames=len(reference),
        reference=count_a,
        other=count_b,
        matched=len(ious),
        share=2 * len(ious) / (count_a + count_b) if count_a + count_b else 1.0,
        mean_iou=float(np.mean(ious)) if ious else float("nan"),
        mean_score_diff=float(np.mean(differences)) if differences else float("nan"),
    )


def match_pairs(a: Detections, b: Detections, iou: float = 0.5) -> list[tuple[int, int, float]]:
    """Return the pairs of a frame as (index in ``a``, index in ``b``, IoU), best IoU first."""
    if not len(a) or not len(b):
        return []
    ious = np.where(a.class_ids[:, None] == b.class_ids[None], overlaps(a.boxes, b.boxes), -1.0)
    rows, columns = np.nonzero(ious >= iou)
    order = np.argsort(-ious[rows, columns], kind="stable")
    free_a, free_b = np.ones(len(a), bool), np.ones(len(b), bool)
    matches = []
    for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if free_a[i] and free_b[j]:
            free_a[i] = free_b[j] = False
            matches.append((i, j, float(ious[i, j])))
    return matches
