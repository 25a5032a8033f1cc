import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.core.timeline.histogram import Histogram
from tests.properties import STEADY


def filled(values):
    histogram = Histogram()
    histogram.add_many(array("q", values[: len(values) // 2]))
    histogram.add_many(array("q", values[len(values) // 2 :]))
    return histogram


@pytest.mark.slow
@STEADY
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.floats(0, 1))
def test_quantiles_are_within_a_thousandth(values, q):
    expected = sorted(values)[max(1, math.ceil(q * len(values))) - 1]
    assert filled(values).quantile(q) == pytest.approx(expected, rel=0.00101)


@pytest.mark.slow
@STEADY
@given(st.lists(st.integers(0, 10**9), max_size=50), st.lists(st.integers(0, 10**9), max_size=50))
def test_merged_histogram_equals_a_histogram_of_all_values(first, second):
    merged = filled(first)
    merged.merge(filled(second))
    both = filled(first + second)
    for q in (0, 0.5, 0.9, 1):
        assert merged.quantile(q) == both.quantile(q)
    assert (merged.count, merged.maximum) == (both.count, both.maximum)


def test_quantiles_of_four_values():
    four = filled([0, 1, 1000, 10**6])
    assert (four.count, four.minimum, four.maximum) == (4, 0, 10**6)
    ranks = {0: 0, 0.25: 0, 0.26: 1, 0.5: 1, 0.51: 1000, 0.75: 1000, 0.76: 10**6, 1: 10**6}
    for q, value in ranks.items():
        assert four.quantile(q) == pytest.approx(value, rel=0.00101)
    assert Histogram().quantile(0.5) is None


@pytest.mark.parametrize(
    ("first", "second", "least", "most"),
    [([5, 9], [3], 3, 9), ([3], [5, 9], 3, 9), ([], [3], 3, 3), ([3], [], 3, 3), ([], [], 0, 0)],
)
def test_merge_keeps_minimum_and_maximum(first, second, least, most):
    merged = filled(first)
    merged.merge(filled(second))
    assert (merged.minimum, merged.maximum) == (least, most)
    assert merged.count == len(first + second)
    assert merged.quantile(0) == (pytest.approx(least, rel=0.00101) if first + second else None)


@pytest.mark.parametrize(("p", "floor"), [(50, 5), (90, 20), (99, 200)])
def test_percentile_is_none_if_there_are_too_few_samples(p, floor):
    assert filled([7] * (floor - 1)).percentile(p) is None
    assert filled([7] * floor).percentile(p) == 7
