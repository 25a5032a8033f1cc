"""Detections against labels, of one class: average precision, recall, precision, and how sure the figures are.

A detection is right where its best remaining match is a labelled box (IoU at least the threshold, each box once, best
score first), neither right nor wrong where that match is a box to ignore, wrong otherwise. Boxes to ignore come after
the real ones. Two kinds of them: ``ignored`` is matched as a real box is, once and by IoU; ``crowd`` takes any number
of detections, by the share of the detection's area that lies in it. So do COCO's own tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.types import Detections

Floats = NDArray[np.float32] | NDArray[np.float64]

RIGHT, WRONG, NEITHER = 1, 0, -1
MAX_DETECTIONS = 100  # a picture and class; the best ones count
RECALLS = np.linspace(0, 1, 101)
RESAMPLES, SEED = 200, 20


@dataclass(frozen=True, slots=True)
class Truth:
    """Labelled boxes of one class in one picture. xyxy [n, 4]; ``ignored`` and ``crowd`` [n] are the two exceptions."""

    boxes: Floats
    ignored: NDArray[np.bool_]
    crowd: NDArray[np.bool_]

    @property
    def wanted(self) -> int:
        return int((~(self.ignored | self.crowd)).sum())


@dataclass(frozen=True, slots=True)
class Judged:
    """One picture after matching: scores best first, an outcome each (RIGHT, WRONG, NEITHER), boxes to be found."""

    scores: NDArray[np.float64]
    outcomes: NDArray[np.int8]
    wanted: int


def overlaps(found: Floats, truth: Floats, of_found: bool = False) -> NDArray[np.float64]:
    """IoU [m, n] of boxes xyxy; ``of_found``: intersection over the found box's own area. Empty boxes give 0."""
    a, b = np.asarray(found, np.float64)[:, None], np.asarray(truth, np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    both = np.maximum(sides, 0).prod(axis=-1)
    area_a, area_b = (np.maximum(x[..., 2:] - x[..., :2], 0).prod(axis=-1) for x in (a, b))
    whole = np.broadcast_to(area_a, both.shape) if of_found else area_a + area_b - both
    result: NDArray[np.float64] = np.divide(both, whole, out=np.zeros_like(both), where=whole > 0)
    return result


def judge(boxes: Floats, scores: Floats, truth: Truth, iou: float = 0.5) -> Judged:
    """``boxes`` [m, 4] and ``scores`` [m] of one picture and class, in any order; ties go to the first."""
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")[:MAX_DETECTIONS]
    if not len(truth.boxes):  # most pairs of a picture and a class, where there are many classes
        return Judged(np.asarray(scores, np.float64)[order], np.full(len(order), WRONG, np.int8), 0)
    best = np.asarray(boxes, np.float64).reshape(-1, 4)[order]
    fits = overlaps(best, truth.boxes)
    fits[:, truth.crowd] = overlaps(best, truth.boxes[truth.crowd], of_found=True)
    real = ~(truth.ignored | truth.crowd)
    free = np.ones(len(real), bool)
    outcomes = np.full(len(order), WRONG, np.int8)
    for at, row in enumerate(fits):
        for among, outcome in ((real, RIGHT), (~real, NEITHER)):
            match = _best(row, among & free, iou)
            if match is not None:
                outcomes[at] = outcome
                free[match] = bool(truth.crowd[match])
                break
    return Judged(np.asarray(scores, np.float64)[order], outcomes, truth.wanted)


def _best(row: NDArray[np.float64], allowed: NDArray[np.bool_], iou: float) -> int | None:
    """The index of the best fit among the allowed ones; None below ``iou``."""
    if not allowed.any():
        return None
    best = int(np.argmax(np.where(allowed, row, -1)))
    return best if row[best] >= iou else None


def average_precision(pictures: Sequence[Judged]) -> float:
    """Mean of the precision at 101 recalls, precision being the best at that recall or beyond. NaN without a box."""
    wanted = sum(picture.wanted for picture in pictures)
    if not wanted:
        return float("nan")
    scores = np.concatenate([picture.scores for picture in pictures])
    outcomes = np.concatenate([picture.outcomes for picture in pictures])
    outcomes = outcomes[np.argsort(-scores, kind="stable")]
    right = np.cumsum(outcomes == RIGHT)
    wrong = np.cumsum(outcomes == WRONG)
    precision = right / np.maximum(right + wrong, 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(right / wanted, RECALLS, side="left")
    return float(np.append(envelope, 0.0)[np.minimum(at, len(envelope))].mean())


def recall(pictures: Sequence[Judged], score: float = 0.0) -> float:
    """Share of the boxes that detections with at least this score find. NaN without a box."""
    wanted = sum(picture.wanted for picture in pictures)
    right = sum(int(((p.outcomes == RIGHT) & (p.scores >= score)).sum()) for p in pictures)
    return right / wanted if wanted else float("nan")


def unmatched(pictures: Sequence[Judged], score: float = 0.0) -> int:
    """Detections with at least this score that match nothing: wrong, or right on something without a label."""
    return sum(int(((p.outcomes == WRONG) & (p.scores >= score)).sum()) for p in pictures)


def precision(pictures: Sequence[Judged], score: float = 0.0) -> float:
    """Share of the detections with at least this score that are right; those that are neither do not count."""
    right = sum(int(((p.outcomes == RIGHT) & (p.scores >= score)).sum()) for p in pictures)
    judged = right + unmatched(pictures, score)
    return right / judged if judged else float("nan")


def interval(
    pictures: Sequence[Judged], figure: Callable[[Sequence[Judged]], float]
) -> tuple[float, float]:
    """95 % percentile bootstrap of a figure over pictures. Pictures of one camera are alike: the true one is wider."""
    rng = np.random.default_rng(SEED)
    n = len(pictures)
    drawn = [figure([pictures[i] for i in rng.integers(0, n, n)]) for _ in range(RESAMPLES)]
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Pool:
    """All detections of a class, best first, so that a resampled figure is a weighted one: no sorting again."""

    right: NDArray[np.bool_]  # [m]
    wrong: NDArray[np.bool_]
    picture: NDArray[np.int64]  # [m] the place of its picture
    wanted: NDArray[np.int64]  # [n] boxes of each picture

    @classmethod
    def of(cls, pictures: Sequence[Judged]) -> Pool:
        scores = np.concatenate([picture.scores for picture in pictures])
        outcomes = np.concatenate([picture.outcomes for picture in pictures])
        places = np.repeat(np.arange(len(pictures)), [len(picture.scores) for picture in pictures])
        order = np.argsort(-scores, kind="stable")
        wanted = np.array([picture.wanted for picture in pictures], np.int64)
        return cls(outcomes[order] == RIGHT, outcomes[order] == WRONG, places[order], wanted)

    def average_precision(self, times: NDArray[np.int64]) -> float:
        """``average_precision`` of a sample in which picture i stands ``times[i]`` times. Equal scores of two pictures
        keep the pictures' order here, and the sample's there. NaN without a box."""
        wanted = int(times @ self.wanted)
        if not wanted:
            return float("nan")
        weights = times[self.picture]
        right, wrong = np.cumsum(self.right * weights), np.cumsum(self.wrong * weights)
        envelope = np.maximum.accumulate((right / np.maximum(right + wrong, 1))[::-1])[::-1]
        at = np.searchsorted(right / wanted, RECALLS, side="left")
        return float(np.append(envelope, 0.0)[np.minimum(at, len(envelope))].mean())


def samples(pictures: int) -> list[NDArray[np.int64]]:
    """How often each picture stands in each of the bootstrap's samples: the draws that ``interval`` makes."""
    rng = np.random.default_rng(SEED)
    return [
        np.bincount(rng.integers(0, pictures, pictures), minlength=pictures)
        for _ in range(RESAMPLES)
    ]


def percentiles(drawn: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of resampled figures; NaN where there is none."""
    if np.isnan(drawn).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return float(low), float(high)


# ----------------------------------------------------------------------
# How far two sets of detections of the same frames agree: of two engines, two precisions, two versions.
#
# Pairs are taken greedily, the highest IoU first, within a class and each box once, so that the result is the same
# whichever side is called the reference.


@dataclass(frozen=True, slots=True)
class Agreement:
    """``reference`` and ``other`` count detections, ``matched`` pairs. ``share`` = 2 x matched / (reference + other),
    1.0 where neither side has any. ``mean_iou`` and ``mean_score_diff`` (absolute) are over pairs, NaN without one."""

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
    """Of the same frames in the same order. Raises ValueError where their numbers differ."""
    if len(reference) != len(other):
        raise ValueError(
            f"agreement needs the same frames on both sides; got {len(reference)} and {len(other)}"
        )
    ious: list[float] = []
    differences: list[float] = []
    for a, b in zip(reference, other, strict=True):
        for i, j, overlap in pairs(a, b, iou):
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


def pairs(a: Detections, b: Detections, iou: float = 0.5) -> list[tuple[int, int, float]]:
    """(index in ``a``, index in ``b``, IoU) of one frame, best IoU first; equal ones by index."""
    if not len(a) or not len(b):
        return []
    fits = np.where(a.class_ids[:, None] == b.class_ids[None], overlaps(a.boxes, b.boxes), -1.0)
    rows, columns = np.nonzero(fits >= iou)
    order = np.argsort(-fits[rows, columns], kind="stable")
    return _greedy(rows[order], columns[order], fits)


def _greedy(
    rows: NDArray[np.intp], columns: NDArray[np.intp], fits: NDArray[np.float64]
) -> list[tuple[int, int, float]]:
    taken_a: set[int] = set()
    taken_b: set[int] = set()
    found = []
    for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
        if i not in taken_a and j not in taken_b:
            taken_a.add(i)
            taken_b.add(j)
            found.append((i, j, float(fits[i, j])))
    return found
