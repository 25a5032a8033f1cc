"""Verdicts on simulated noise, and statistics compared with published tables."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from measuring.noise import alarms, simulate, simulate_diff

from detector.lab.analysis import compare, statistics
from detector.lab.analysis.statistics import (
    LOOKS,
    compare_means,
    fewest_rounds,
    holm,
    judge,
    noise_floor,
    rank_interval,
    share_of_look,
    sign_p,
    student_quantile,
    student_tail,
)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (30, 2.042)]
)
def test_student_distribution_equals_the_tables(freedom, quantile):
    assert student_quantile(0.975, freedom) == pytest.approx(quantile, abs=5e-4)
    assert student_tail(quantile, freedom) == pytest.approx(0.025, abs=5e-5)


@pytest.mark.parametrize(
    ("ranks_below", "count", "p"),
    [
        ((), 6, 2 / 64),
        ((1,), 6, 4 / 64),
        ((3, 5), 10, 2 * 25 / 1024),  # 25 subsets of 1..10 have a sum of at most 8
        ((1, 2, 3, 4, 5, 6), 12, 0.176),  # 12 pairs, W = 21; the one-sided p is 0.0881
    ],
)
def test_p_values_of_signed_ranks_equal_the_tables(ranks_below, count, p):
    values = [-rank if rank in ranks_below else rank for rank in range(1, count + 1)]
    assert sign_p(values) == pytest.approx(p, abs=5e-4)


def test_normal_approximation_is_close_to_the_exact_p_value(monkeypatch):
    values = [one * (-1 if one % 3 == 0 else 1) for one in range(1, 51)]
    exact, bounds = sign_p(values), rank_interval(values, 0.05)
    monkeypatch.setattr(statistics, "MOST_EXACT", 10)
    assert sign_p(values) == pytest.approx(exact, rel=0.2)
    assert rank_interval(values, 0.05) == pytest.approx(bounds, rel=0.05)


def test_interval_contains_the_values_that_the_test_does_not_reject():
    values = [0.3, -0.1, 0.4, 0.15, 0.9, 0.26, -0.5, 0.35, 0.8, 0.65]
    low, middle, high = rank_interval(values, 0.05)
    assert low < middle < high
    for edge, inside in ((low, 1e-6), (high, -1e-6)):
        assert sign_p(values, edge + inside) > 0.05
        assert sign_p(values, edge - inside) <= 0.05
    assert rank_interval(values[:4], 0.05)[::2] == (-math.inf, math.inf)


def test_holm_correction_of_known_p_values():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_one_round_less_than_fewest_rounds_cannot_decide():
    for rows in (1, 2, 3, 6, 7):
        least = fewest_rounds(rows)
        for rounds, decided in ((least, True), (least - 1, False)):
            series = [[0.1 + at / 1000 for at in range(rounds)]] * rows
            assert {one.outcome != "open" for one in judge(series, 0.01, 0.02)} == {decided}


def test_interim_analyses_together_spend_the_whole_error_rate():
    assert sum(share_of_look(rounds, False) for rounds in range(1, 31)) == pytest.approx(1)
    assert share_of_look(7, False) == 0
    for at, look in enumerate(LOOKS):  # any look may be the last, which spends what is left
        spent = sum(share_of_look(one, False) for one in LOOKS[:at])
        assert spent + share_of_look(look, True) == pytest.approx(1)


def test_the_first_interim_analysis_can_decide():
    """Eight rounds agree by chance less often than the error rate of this analysis allows."""
    [result] = judge([[0.1 + at / 1000 for at in range(8)]], 0.01, 0.02, share_of_look(8, False))
    assert result.outcome == "faster"
    [result] = judge([[0.011] * 8], 0.02, 0.02, 1.0)
    assert result.outcome == "same"


@pytest.mark.slow
def test_equal_rows_raise_no_alarm_but_slower_rows_do():
    """Simulate drift, bursts and autocorrelated noise. Seeds are fixed, so counts are exact."""
    assert sum(alarms(simulate(seed, {})) for seed in range(20)) == 0
    result = [alarms(simulate(seed, {1: 0.05}), ("slower",)) for seed in range(200, 215)]
    assert sum(result) == 15


@pytest.mark.slow
def test_false_alarms_stay_below_the_error_rate_without_a_margin(monkeypatch):
    """Turn the noise margin off. Spending the whole error rate at each look would give 7 alarms."""
    monkeypatch.setattr(compare, "noise_floor", lambda equal: 0.0)
    assert sum(alarms(simulate(seed, {})) for seed in range(50, 100)) == 2


def test_equal_runs_raise_no_alarm():
    verdicts = [simulate_diff(seed, 0.0, 200) for seed in range(40)]
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) == 0


def test_noise_floor_is_at_least_one_percent():
    assert noise_floor(None) == noise_floor([]) == noise_floor([0.001] * 9) == 0.01
    assert noise_floor([-0.03] * 9) == pytest.approx(0.03)


def test_slow_stretch_widens_the_interval_of_a_mean():
    calm, block = np.full(160, 10.0), np.full(160, 10.0)
    block[:20] = 20.0
    result = compare_means(calm, block)
    assert result.ratio == pytest.approx(1.125)
    assert result.low < 1 < result.ratio < result.high
    assert result.p > 0.05
    assert compare_means(calm, calm * 1.05).p < 0.05


def test_comparison_of_means_equals_a_calculation_by_hand():
    """The blocks' means are 9 and 11: their mean is 10, their standard deviation sqrt(8 / 7)."""
    run = np.repeat([9.0, 11.0] * 4, 2)
    result = compare_means(run, run)
    error = math.sqrt(8 / 7) / 10 * math.sqrt(1 + 1 / 8) * math.sqrt(2)
    reach = 0.01 + 2.3646 * error  # Student's t, 7 degrees of freedom
    assert (result.ratio, result.p) == (1, 1)
    assert math.log(result.high) == pytest.approx(reach, rel=1e-4)
    assert math.log(result.low) == pytest.approx(-reach, rel=1e-4)
    assert math.log1p(result.smallest) == pytest.approx(reach + 1.4149 * error, rel=1e-4)
    assert compare_means(run, run * math.exp(reach)).p == pytest.approx(0.05, rel=1e-3)


def test_smallest_detectable_effect_follows_from_the_noise():
    """For normal noise, textbooks give this effect as (z of alpha + z of power) standard errors."""
    count = 40
    normal = [NormalDist(0.0, 0.1).inv_cdf((at + 0.5) / count) for at in range(count)]
    [result] = judge([normal], 0.02, 0.02)
    assert result.ratio == pytest.approx(1)
    expected = math.expm1(0.02 + (1.96 + 1.2816) * 0.1 / math.sqrt(count))
    assert result.smallest == pytest.approx(expected, rel=0.05)
    assert result.p > 0.5
    assert result.largest == max(1 - result.low, result.high - 1)
    [few] = judge([[0.1] * 3], 0.01, 0.02)
    assert few.smallest == math.inf


@pytest.mark.parametrize(("low", "high", "largest"), [(0.7, 1.1, 0.3), (0.9, 1.4, 0.4)])
def test_largest_difference_is_at_an_end_of_the_interval(low, high, largest):
    assert statistics.Judged(1.0, low, high, 1.0, "open", 0.1).largest == pytest.approx(largest)


def test_normal_approximation_equals_a_calculation_by_hand(monkeypatch):
    """Ranks 1-5 of 20 are negative: W = 15, mean 105, variance 717.5, continuity correction 0.5."""
    values = [-rank if rank <= 5 else rank for rank in range(1, 21)]
    monkeypatch.setattr(statistics, "MOST_EXACT", 19)
    assert sign_p(values) == pytest.approx(2 * NormalDist().cdf(-89.5 / math.sqrt(717.5)))
    assert statistics._find_critical_sum(20, 0.05) == 52  # floor(105 - 1.96 * 26.786)
    assert statistics._find_critical_sum(20, 1e-9) == -1
    monkeypatch.setattr(statistics, "MOST_EXACT", 20)
    assert sign_p(values) != pytest.approx(2 * NormalDist().cdf(-89.5 / math.sqrt(717.5)))
