"""Assignments have the same sum as the best permutation, and overlaps equal known values."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from detector.core.analysis.assignment import assign, overlaps


def best_sum(gains: NDArray[np.float64]) -> float:
    """Return the best sum by trying all assignments."""
    wide = gains if gains.shape[0] <= gains.shape[1] else gains.T
    wide = np.maximum(wide, 0)
    n, m = wide.shape
    return max(sum(wide[i, p[i]] for i in range(n)) for p in itertools.permutations(range(m), n))


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 5), (6, 3), (5, 5), (4, 6)])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
def test_assignment_has_the_largest_sum(shape: tuple[int, int], share: float) -> None:
    random = np.random.default_rng(7)
    for _ in range(20):
        gains = random.uniform(0, 1, shape) * (random.uniform(size=shape) < share)
        gains -= 0.1 * (random.uniform(size=shape) < 0.2)  # pairs without gain are never assigned
        rows, columns = assign(gains)
        assert len(set(rows.tolist())) == len(rows)
        assert len(set(columns.tolist())) == len(columns)
        assert rows.tolist() == sorted(rows.tolist())
        assert (gains[rows, columns] > 0).all()
        assert gains[rows, columns].sum() == pytest.approx(best_sum(gains))


def test_large_matrix_gives_the_planted_best_pairs() -> None:
    """Only the planted pairs have no ``loss``. ``prices`` adds one number to each row and one to
    each column, so the best pairs stay the same."""
    random = np.random.default_rng(3)
    for n in (60, 100):
        best = random.permutation(n)
        loss = random.uniform(0.05, 1, (n, n))
        loss[np.arange(n), best] = 0
        prices = random.uniform(2, 3, n)[:, None] + random.uniform(2, 3, n)[None]
        rows, columns = assign(prices - loss)
        assert rows.tolist() == list(range(n))
        assert columns.tolist() == best.tolist()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_empty_matrix_assigns_nothing(shape: tuple[int, int]) -> None:
    rows, columns = assign(np.zeros(shape))
    assert len(rows) == len(columns) == 0


def test_overlaps_equal_known_values_at_any_scale() -> None:
    first = np.array([[0, 0, 10, 10], [5, 5, 5, 5]], float)
    second = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30], [5, 5, 5, 5]], float)
    expected = np.array([[1, 1 / 3, 0, 0], [0, 0, 0, 0]])
    for scale in (1, 1 / 100):  # in pixels, and as fractions of the picture
        assert overlaps(first * scale, second * scale) == pytest.approx(expected)
