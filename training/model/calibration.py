"""Calibration of scores: half of the boxes with score .5 should be right.

The class logit is scaled and shifted. Scale and shift come from a logistic regression that predicts
from a box's score whether the box is right. The order of a class's boxes stays, and so does AP.

Only pictures with complete labels tell whether a box is wrong. In ``coco``, all objects are
labelled; in ``overpass``, almost all vehicles. Labels are missing in ``road`` and ``elevated``: a
box of an unlabelled object would count as an error and lower the scores. The rendered street has
complete labels, but resembles training pictures, so its scores are better than on photographs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.core.analysis import matching
from detector.lab.analysis.accuracy import average_precision as ap
from model.evaluation import Results

COMPLETE = {"person": ("coco",), "vehicle": ("coco", "overpass")}
# Boxes with a lower calibrated score are not in the fit: thousands of them would dominate it.
FIT_FROM = 0.05
ROUNDS = 50
RIDGE = 1e-2  # keeps the fit finite if the scores separate right from wrong perfectly
BINS = 10
THRESHOLDS = np.round(np.arange(0.05, 0.96, 0.01), 2)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of a class: new logit = ``scale`` * logit + ``shift``."""

    scale: float
    shift: float

    def __call__(self, scores: NDArray) -> NDArray[np.float64]:
        return logistic(self.scale * logit(scores) + self.shift)


@dataclass(frozen=True, slots=True)
class Bin:
    """The boxes with scores in one tenth of the range 0 to 1."""

    boxes: int
    mean: float  # mean score; NaN without a box
    right: float  # share of right boxes
    interval: tuple[float, float]  # the interval of ``right``, by bootstrap over pictures


def logit(scores: NDArray) -> NDArray[np.float64]:
    inside = np.clip(np.asarray(scores, np.float64), 1e-6, 1 - 1e-6)
    return np.log(inside / (1 - inside))


def logistic(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-logits))


def rows_of(results: Results, name: str) -> list[matching.Matches]:
    """Return the pictures in which all objects of a class are labelled."""
    return [row for group in COMPLETE[name] for row in results[group, name]]


def apply(calibration: Calibration, rows: Sequence[matching.Matches]) -> list[matching.Matches]:
    return [matching.Matches(calibration(row.scores), row.outcomes, row.wanted) for row in rows]


def fit_rows(rows: Sequence[matching.Matches]) -> Calibration:
    """Fit repeatedly until the set of boxes above FIT_FROM does not change. Scores that are already
    calibrated give scale 1 and shift 0."""
    scores = np.concatenate([row.scores for row in rows])
    outcomes = np.concatenate([row.outcomes for row in rows])
    scores, right = scores[outcomes != matching.NEITHER], outcomes[outcomes != matching.NEITHER]
    calibration, used = Calibration(1.0, 0.0), None
    for _ in range(ROUNDS):
        before, used = used, calibration(scores) >= FIT_FROM
        if before is not None and np.array_equal(before, used):
            break
        calibration = fit(scores[used], right[used] == matching.RIGHT)
    return calibration


def fit(scores: NDArray, right: NDArray[np.bool_]) -> Calibration:
    """Run a logistic regression by Newton's method. A step that goes too far is halved."""
    x = np.stack([logit(scores), np.ones(len(scores))], axis=1)
    weights, initial = np.array([1.0, 0.0]), np.array([1.0, 0.0])

    def cost(w: NDArray) -> float:
        z = x @ w
        return float(
            np.sum(np.logaddexp(0, z) - right * z) + RIDGE / 2 * np.sum((w - initial) ** 2)
        )

    for _ in range(100):
        p = logistic(x @ weights)
        slope = x.T @ (p - right) + RIDGE * (weights - initial)
        step = np.linalg.solve((x.T * (p * (1 - p))) @ x + RIDGE * np.eye(2), slope)
        size = 1.0
        while size > 1e-6 and cost(weights - size * step) > cost(weights):
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-9:
            break
    return Calibration(float(weights[0]), float(weights[1]))


def reliability(rows: Sequence[matching.Matches]) -> list[Bin]:
    """Return the reliability diagram as a table of BINS rows, lowest scores first."""
    counts = np.zeros((len(rows), BINS, 3))  # boxes, sum of their scores, right boxes
    for at, row in enumerate(rows):
        judged = row.outcomes != matching.NEITHER
        scores, right = row.scores[judged], row.outcomes[judged] == matching.RIGHT
        places = np.minimum((scores * BINS).astype(int), BINS - 1)
        for column, values in enumerate((np.ones(len(scores)), scores, right)):
            counts[at, :, column] = np.bincount(places, values, minlength=BINS)
    drawn = np.stack([np.tensordot(times, counts, 1) for times in ap.samples(len(rows))])
    bins = []
    for at, (boxes, total, right) in enumerate(counts.sum(axis=0)):
        with np.errstate(invalid="ignore"):
            shares = drawn[:, at, 2] / drawn[:, at, 0]
        mean, share = (total / boxes, right / boxes) if boxes else (float("nan"), float("nan"))
        bins.append(Bin(int(boxes), float(mean), float(share), ap.percentiles(shares.tolist())))
    return bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return |mean score - share of right boxes| of a bin, averaged over all boxes."""
    filled = [row for row in bins if row.boxes]
    return sum(row.boxes * abs(row.mean - row.right) for row in filled) / sum(
        row.boxes for row in filled
    )


def f1(rows: Sequence[matching.Matches], score: float) -> float:
    """Return F1 at a score: 2 * right / (detected boxes + true boxes)."""
    found_count = ap.recall(rows, score) * sum(row.wanted for row in rows)
    total = sum(row.wanted for row in rows)
    return 2 * found_count / (found_count + ap.unmatched(rows, score) + total)


def best_threshold(by_class: Sequence[Sequence[matching.Matches]]) -> float:
    """Return the score at which F1, averaged over the classes, is best."""
    means = [np.mean([f1(rows, score) for rows in by_class]) for score in THRESHOLDS]
    return float(THRESHOLDS[int(np.argmax(means))])
