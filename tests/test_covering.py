"""Few rows of a product, in which any two values meet."""

import itertools

import pytest

from tests.covering import covering


@pytest.mark.parametrize(("together", "most"), [(2, 20), (3, 40)])
def test_all_meet_in_less_than_the_product(together, most):
    lists = ([1, 2, 3], "ab", [None, True, 7, 0.5], [(), (9,)])
    rows = covering(*lists, together=together)
    for places in itertools.combinations(range(4), together):
        met = {tuple(row[at] for at in places) for row in rows}
        assert met == set(itertools.product(*(lists[at] for at in places)))
    assert len(rows) < most  # of 48


def test_of_two_lists_it_is_the_product():
    assert sorted(covering([1, 2], [3, 4])) == [(1, 3), (1, 4), (2, 3), (2, 4)]
