"""Ranges of tensors: exact with "minmax", and without outliers with "percentile"."""

import numpy as np
import pytest

from detector.core.config.schema import CALIBRATIONS
from detector.core.models.graph.qdq import tensors_to_measure
from detector.core.models.graph.ranges import measure_ranges, percentile_range
from tests.run.quantize.graphs import SIDE, branched, chain


def slots(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, SIDE, SIDE, 3)).astype(np.uint8)


def test_minmax_gives_the_extremes() -> None:
    pictures = np.zeros((2, SIDE, SIDE, 3), np.uint8)
    pictures[0, 1, 1, 0], pictures[1, 2, 2, 1] = 155, 255
    found = measure_ranges(chain().graph, tensors_to_measure(chain().graph), pictures, "minmax")
    assert found["input.cast"] == (0, 255)
    assert found["0.conv"] == (-55, 200)
    assert found["0.act"] == (0, 200)
    assert found["2.conv"] == (0, 50)  # 200 / 4 in plane 1, 100 / 2 in plane 0
    assert "1.maxpool" not in found  # it only moves values, so its input's range applies


@pytest.mark.slow
@pytest.mark.parametrize("method", CALIBRATIONS)
def test_ranges_do_not_depend_on_the_batch(method: str) -> None:
    """With five frames in batches of three, the last batch is only partly filled."""
    pictures = slots(5)
    singly = measure_ranges(
        branched().graph, tensors_to_measure(branched().graph), pictures, method
    )
    together = measure_ranges(
        branched(3).graph, tensors_to_measure(branched(3).graph), pictures, method
    )
    assert singly.keys() == together.keys()
    for name, found in singly.items():
        assert found == pytest.approx(together[name], rel=1e-5)


@pytest.mark.slow
def test_a_single_outlier_is_cut_off() -> None:
    """One value is 255, in 700 pictures of noise between 0 and 15."""
    pictures = np.random.default_rng(0).integers(0, 16, (700, SIDE, SIDE, 3)).astype(np.uint8)
    pictures[350, 0, 0, 0] = 255
    network = branched()
    low, high = measure_ranges(network.graph, ["0.conv"], pictures, "percentile")["0.conv"]
    assert low == 0
    assert 14 <= high < 40
    assert measure_ranges(network.graph, ["0.conv"], pictures, "minmax")["0.conv"] == (0, 255)


@pytest.mark.parametrize(
    ("counts", "percent", "expected"),
    [
        ([25, 25, 25, 25], 100, (-2, 2)),
        ([1, 98, 0, 1], 98, (-1, 0)),  # omits one of 100 values at either end
        ([0, 50, 50, 0], 100, (-1, 1)),
        ([0, 0, 100, 0], 50, (0, 1)),
    ],
)
def test_outliers_are_cut(counts: list[int], percent: float, expected: tuple[float, float]) -> None:
    assert percentile_range(np.array(counts), np.arange(-2, 3), -2, 2, percent) == expected


def test_progress_counts_frames() -> None:
    steps: list[tuple[int, int]] = []
    measure_ranges(
        chain(2).graph, ["0.conv"], slots(3), "minmax", lambda done, of: steps.append((done, of))
    )
    assert steps == [(1, 3), (2, 3), (3, 3)]
