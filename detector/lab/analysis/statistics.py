"""Separate differences in speed from chance, and decide when a comparison may stop.

Rounds: In each round every variant has one turn, in a new random order. If two variants are equal,
the sign of the logarithm of their ratio is a coin toss: drift, bursts and autocorrelated noise only
change the logarithm's size. So the random order makes Wilcoxon's signed-rank test keep its level,
whatever the noise is (Fisher, The Design of Experiments, 1935; randomized multiple interleaved
trials: Abedi and Brecht, ICPE 2017). The ratio's interval is by Hodges and Lehmann (Ann. Math.
Statist. 34, 1963).

Looks: A look is an interim analysis. Each of ``LOOKS`` spends an equal share of ALPHA, the simplest
spending function (Lan and DeMets, Biometrika 70, 1983). By Bonferroni's inequality, this holds for
dependent looks, too. Holm's method corrects for several rows (Scand. J. Statist. 6, 1979).

Runs: The mean of an autocorrelated series, such as the times of one run's frames, is estimated
from a few long blocks, with Student's t (Ibragimov and Mueller, J. Bus. Econ. Statist. 28,
2010): the test keeps its level even if blocks differ in their noise. Two runs are further apart in
time than two blocks of one run, but we assume that they drift no more than two blocks do (1/f noise
has equal power in each octave; Keshner, Proc. IEEE 70, 1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05  # probability that a comparison of equal variants calls any of them different
POWER = 0.9  # probability of detecting the smallest effect
LOOKS = (8, 12, 16, 20, 25, 30)  # rounds after which an open-ended comparison may stop
# Two processes of one program differ in speed because of their memory layout (Mytkowicz et al.,
# ASPLOS 2009). We ignore differences smaller than this.
PLACEMENT = 0.01
MOST_EXACT = 60  # values; with more, the normal distribution is as good as the exact one
BLOCKS = 8  # a run's frames are split into this many blocks

Outcome = Literal["faster", "slower", "same", "open"]
Floats = NDArray[np.float64]


# ---- pairs of turns


@cache
def _rank_sum_chances(count: int) -> Floats:
    """Return P(the positive ranks add up to k) for k = 0, 1, ..., if each rank's sign is random."""
    chances = np.ones(1)
    for rank in range(1, count + 1):
        moved = np.concatenate([np.zeros(rank), chances])
        moved[: len(chances)] += chances
        chances = moved / 2
    return chances


def _find_critical_sum(count: int, alpha: float) -> int:
    """Return the largest k with P(sum <= k) <= alpha / 2; -1 if there is none."""
    if count <= MOST_EXACT:
        return (
            int(np.searchsorted(np.cumsum(_rank_sum_chances(count)), alpha / 2, side="right")) - 1
        )
    mean, variance = count * (count + 1) / 4, count * (count + 1) * (2 * count + 1) / 24
    return max(-1, math.floor(mean + NormalDist().inv_cdf(alpha / 2) * math.sqrt(variance)))


def fewest_rounds(rows: int, share: float = 1.0) -> int:
    return max(2, math.ceil(1 - math.log2(ALPHA * share / max(1, rows))))


def sign_p(values: Sequence[float], centre: float = 0.0) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test. Hypothesis: ``values`` lie
    symmetrically around ``centre``. Values equal to it are dropped; p is 1 if none remain."""
    away = np.asarray(values, np.float64) - centre
    away = away[away != 0]
    count = len(away)
    if not count:
        return 1.0
    # Ties are rare among times, so they are ranked in the order of the rounds.
    ranks = np.argsort(np.argsort(np.abs(away), kind="stable"), kind="stable") + 1
    least = int(min(ranks[away > 0].sum(), ranks[away < 0].sum()))
    if count <= MOST_EXACT:
        return min(1.0, 2 * float(_rank_sum_chances(count)[: least + 1].sum()))
    mean, variance = count * (count + 1) / 4, count * (count + 1) * (2 * count + 1) / 24
    return min(1.0, 2 * NormalDist().cdf((least + 0.5 - mean) / math.sqrt(variance)))


def rank_interval(values: Sequence[float], alpha: float) -> tuple[float, float, float]:
    """Return (low, Hodges-Lehmann estimate, high); low and high are infinite for few values."""
    series = np.asarray(values, np.float64)
    pairs = np.sort(((series[:, None] + series[None, :]) / 2)[np.triu_indices(len(series))])
    at = _find_critical_sum(len(series), alpha) + 1
    if at <= 0:
        return -math.inf, float(np.median(pairs)), math.inf
    return float(pairs[at - 1]), float(np.median(pairs)), float(pairs[len(pairs) - at])


def holm(values: Sequence[float]) -> list[float]:
    """Correct p values for multiple tests by Holm's method; keep their order."""
    corrected, least = [1.0] * len(values), 0.0
    for place, at in enumerate(np.argsort(values, kind="stable").tolist()):
        least = max(least, min(1.0, values[at] * (len(values) - place)))
        corrected[at] = least
    return corrected


# ---- a comparison


@dataclass(frozen=True, slots=True)
class Judged:
    """The result for one series of log ratios, at one look. ``low``, ``ratio``, ``high``: the
    estimate with its interval. ``p``: p value of the hypothesis that the ratio is within the noise
    floor. Interval and p are corrected for all series and looks. ``smallest``: the least effect, as
    a share, that this comparison detects with probability POWER."""

    ratio: float
    low: float
    high: float
    p: float
    outcome: Outcome
    smallest: float

    @property
    def largest(self) -> float:
        return max(abs(self.low - 1), abs(self.high - 1))


def noise_floor(equal: Sequence[float] | None) -> float:
    """Return the log ratio between two processes of the same variant, at least PLACEMENT.
    ``equal``: their log ratio in each round; None if not measured."""
    if not equal:
        return PLACEMENT
    return max(PLACEMENT, abs(rank_interval(equal, ALPHA)[1]))


def judge(
    series: Sequence[Sequence[float]], floor: float, same: float, share: float = 1.0
) -> list[Judged]:
    """Judge each series of log ratios to one baseline. A series has a value per round. Results are
    corrected for the number of series. ``floor``: from ``noise_floor``; smaller effects are not
    differences. ``same``: smallest effect that matters, as a share; a series whose interval has
    only smaller effects is "same". ``share``: the part of ALPHA that this look may spend."""
    alpha = ALPHA * share
    raw = [_p_beyond(values, floor) / share for values in series]
    per_series = alpha / max(1, len(series))
    judged = []
    for values, p in zip(series, holm(raw), strict=True):
        low, middle, high = rank_interval(values, per_series)
        outcome: Outcome = "open"
        if p <= ALPHA:
            outcome = "faster" if middle > 0 else "slower"
        elif max(abs(math.expm1(low)), abs(math.expm1(high))) <= same:
            outcome = "same"
        judged.append(
            Judged(
                math.exp(middle),
                math.exp(low),
                math.exp(min(high, 700.0)),
                p,
                outcome,
                _smallest_effect(values, per_series, floor),
            )
        )
    return judged


def _p_beyond(values: Sequence[float], floor: float) -> float:
    """Return the p of "the ratio is within the floor", tested for the ratio nearest the median."""
    centre = float(np.median(values))
    return sign_p(values, math.copysign(min(floor, abs(centre)), centre)) if centre else 1.0


def _smallest_effect(values: Sequence[float], alpha: float, floor: float) -> float:
    """Return the detectable effect (a share). Half of a 2/3 interval is about a standard error."""
    normal = NormalDist()
    if len(values) < 2 or _find_critical_sum(len(values), alpha) < 0:
        return math.inf
    low, _, high = rank_interval(values, 1 / 3)
    error = (high - low) / 2 / normal.inv_cdf(1 - 1 / 6)
    return math.expm1(floor + error * (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(POWER)))


def share_of_look(rounds: int, last: bool) -> float:
    """Return the share of ALPHA to spend after this many rounds; 0 if no look is due. ``last``: the
    rounds end now, whatever the figures are. We then spend the rest of ALPHA."""
    if last:
        return sum(look >= rounds for look in LOOKS) / len(LOOKS) or 1 / len(LOOKS)
    return 1 / len(LOOKS) if rounds in LOOKS else 0.0


# ---- two runs


class RatioOfMeans(NamedTuple):
    """Ratio of two means. ``smallest``: least effect (share) detected with probability POWER."""

    ratio: float
    low: float
    high: float
    p: float
    smallest: float


def compare_means(before: Floats, after: Floats) -> RatioOfMeans:
    first, before_error = _block_mean(before)
    second, after_error = _block_mean(after)
    error = max(math.hypot(before_error, after_error), 1e-12)
    freedom = min(BLOCKS, len(before), len(after)) - 1
    middle = math.log(second / first)
    reach = PLACEMENT + student_quantile(1 - ALPHA / 2, freedom) * error
    low, high = (math.exp(max(-700.0, min(700.0, middle + sign * reach))) for sign in (-1, 1))
    return RatioOfMeans(
        second / first,
        low,
        high,
        min(1.0, 2 * student_tail(max(0.0, abs(middle) - PLACEMENT) / error, freedom)),
        math.expm1(min(700.0, reach + student_quantile(POWER, freedom) * error)),
    )


def _block_mean(values: Floats) -> tuple[float, float]:
    """Return a run's mean, and its relative error as a prediction of another run's mean. The error
    includes a drift between the runs, assumed to be as large as the drift between blocks."""
    blocks = [block.mean() for block in np.array_split(values, min(BLOCKS, len(values)))]
    mean = max(float(values.mean()), 1e-12)
    return mean, float(np.std(blocks, ddof=1)) * math.sqrt(1 + 1 / len(blocks)) / mean


def student_tail(t: float, freedom: int) -> float:
    """Return P(T > t) of Student's t; integer ``freedom``, t >= 0 (Abramowitz, Stegun 26.7.3)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    term = total = math.sin(angle) * (cosine if freedom % 2 else 1.0)
    if freedom == 1:
        return 0.5 - angle / math.pi
    for step in range(3 if freedom % 2 else 2, freedom, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    inside = 2 / math.pi * (angle + total) if freedom % 2 else total
    return max(0.0, (1 - inside) / 2)


def student_quantile(p: float, freedom: int) -> float:
    low, high = 0.0, 1e9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > 1 - p else (low, middle)
    return (low + high) / 2
