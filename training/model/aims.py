"""The aims for the next version of the default model, each with its interval.

Most aims are ratios of our figure to that of yolox_nano. Their intervals come from a paired
bootstrap: each sample draws pictures (for flicker: objects), and both models are judged on the same
draw. A shared draw narrows the interval, because a picture that is hard for one model is also hard
for the other. The true interval is wider, because frames of one camera resemble each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core.analysis import matching
from detector.lab.analysis.accuracy import average_precision as ap
from model.evaluation import NAMES, REPORTED, Results
from model.steadiness import Sightings, Steadiness, count_found, score_of_recall, share, steadiness

DRAWS, SEED = 1000, 20
UNMATCHED = 1.2  # on ``elevated`` we may have this many times yolox_nano's unmatched boxes
INT8_LOSS = 0.01

Rows = Sequence[matching.Matches]


class Estimate(NamedTuple):
    value: float
    low: float  # lower end of the 95 % interval
    high: float


@dataclass(frozen=True, slots=True)
class Aim:
    text: str
    limit: float
    at_least: bool
    estimate: Estimate

    @property
    def verdict(self) -> str:
        """Say if the value reaches the limit. Add "not sure" if the limit is in the interval."""
        value, low, high = self.estimate
        if np.isnan(value):
            return "not measured"
        reached = value >= self.limit if self.at_least else value <= self.limit
        sure = not low < self.limit < high
        return ("reached" if reached else "missed") + ("" if sure else ", not sure")


def draws(things: int) -> list[NDArray[np.int64]]:
    """Return, for each sample, how often each of ``things`` pictures or objects is drawn."""
    rng = np.random.default_rng(SEED)
    return [np.bincount(rng.integers(0, things, things), minlength=things) for _ in range(DRAWS)]


def estimate(things: int, figure: Callable[[NDArray[np.int64]], float]) -> Estimate:
    """Return a figure and its interval. ``figure`` gets how often each thing is drawn."""
    drawn = np.array([figure(times) for times in draws(things)])
    value = figure(np.ones(things, np.int64))
    return Estimate(value, *ap.percentiles(drawn[np.isfinite(drawn)].tolist() or [np.nan]))


def ratio(part: float, whole: float) -> float:
    """Divide; NaN if ``whole`` is 0."""
    return part / whole if whole else float("nan")


def ratio_of_ap(ours: Rows, theirs: Rows) -> Estimate:
    a, b = ap.Ranking.of(ours), ap.Ranking.of(theirs)
    return estimate(
        len(ours), lambda times: ratio(a.average_precision(times), b.average_precision(times))
    )


def absolute_ap(ours: Rows) -> Estimate:
    return estimate(len(ours), ap.Ranking.of(ours).average_precision)


def loss_of_ap(first: Rows, second: Rows) -> Estimate:
    """Return by how much the AP50 of ``second`` is lower than that of ``first``."""
    a, b = ap.Ranking.of(first), ap.Ranking.of(second)
    return estimate(
        len(first), lambda times: a.average_precision(times) - b.average_precision(times)
    )


def ratio_of_recall(ours: Rows, theirs: Rows) -> Estimate:
    """Return our recall / yolox_nano's. We may have UNMATCHED times its number of wrong boxes."""
    pool = ap.Ranking.of(ours)
    wrong, right = (
        np.array([((row.outcomes == kind) & (row.scores >= REPORTED)).sum() for row in theirs])
        for kind in (matching.WRONG, matching.RIGHT)
    )

    def figure(times: NDArray[np.int64]) -> float:
        found_count = found_with(pool, times, UNMATCHED * float(times @ wrong))
        return ratio(found_count, float(times @ right))  # both recalls have the same denominator

    return estimate(len(ours), figure)


def found_with(pool: ap.Ranking, times: NDArray[np.int64], unmatched: float) -> int:
    """Count right boxes, best score first, until there are more than ``unmatched`` wrong boxes."""
    weights = times[pool.picture]
    end = int(np.searchsorted(np.cumsum(pool.wrong * weights), unmatched, side="right"))
    return int((pool.right * weights)[:end].sum())


# Flicker at equal recall


def equally_found(ours: Sightings, theirs: Sightings) -> tuple[Steadiness, Steadiness]:
    """Return our steadiness at the score that gives equal recall, and theirs at score .25."""
    score = score_of_recall(ours, count_found(theirs))
    return steadiness(ours, score), steadiness(theirs, REPORTED)


def ratio_of_flicker(ours: Steadiness, theirs: Steadiness) -> Estimate:
    return estimate(
        len(ours.spans),
        lambda times: ratio(
            share(times * ours.missing, times * ours.spans),
            share(times * theirs.missing, times * theirs.spans),
        ),
    )


# The list


def judge_aims(
    ours: Results,
    theirs: Results,
    clips: dict[tuple[str, str], tuple[Steadiness, Steadiness]],
    int8: Results | None,
) -> list[Aim]:
    """Return all aims. ``clips``: (clip, class) -> our steadiness and yolox_nano's.

    ``int8``: results of the same weights in int8.
    """
    aims = []
    for group, name, limit in (
        ("coco", "person", 0.85),
        ("coco", "vehicle", 0.85),
        ("road", "person", 0.95),
        ("road", "vehicle", 1.0),
        ("overpass", "vehicle", 1.5),
    ):
        at = (group, name)
        text = f"{group} {name}: AP50 / yolox_nano's"
        aims.append(Aim(text, limit, True, ratio_of_ap(ours[at], theirs[at])))
    at = ("elevated", "vehicle")
    text = f"elevated: recall / yolox_nano's, with {UNMATCHED} x its unmatched boxes"
    aims.append(Aim(text, 1.3, True, ratio_of_recall(ours[at], theirs[at])))
    for name, limit in zip(NAMES, (0.95, 0.92), strict=True):
        text = f"street.mp4 {name}: AP50"
        aims.append(Aim(text, limit, True, absolute_ap(ours["street.mp4", name])))
    aims += [aim_of_flicker(at, pair) for at, pair in clips.items()]
    if int8 is not None:
        at, loss = worst_loss(ours, int8)
        aims.append(Aim(f"int8: largest loss of AP50 ({' '.join(at)})", INT8_LOSS, False, loss))
    return aims


def aim_of_flicker(at: tuple[str, str], pair: tuple[Steadiness, Steadiness]) -> Aim:
    """Return the aim of flicker. ``at``: clip and class."""
    text = f"{' '.join(at)}: flicker / yolox_nano's, at equal recall"
    return Aim(text, 1.0, False, ratio_of_flicker(*pair))


def worst_loss(ours: Results, int8: Results) -> tuple[tuple[str, str], Estimate]:
    """Return the set and class whose AP50 drops most in int8, and the loss. We leave out
    ``elevated``, because its labels have gaps."""

    def loss(at: tuple[str, str]) -> float:
        return ap.average_precision(ours[at]) - ap.average_precision(int8[at])

    at = max((key for key in ours if key[0] != "elevated"), key=loss)
    return at, loss_of_ap(ours[at], int8[at])
