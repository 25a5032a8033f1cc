"""The agreement of two sets of detections, for tiny frames with known answers."""

import math

import numpy as np
import pytest

from detector.core.analysis.agreement import agreement, match_pairs
from detector.core.types import Detections

Row = tuple[float, float, float, float, float, int]  # x1, y1, x2, y2, score, class


def frame(*rows: Row) -> Detections:
    table = np.array(rows, np.float64).reshape(-1, 6)
    return Detections(
        table[:, :4].astype(np.float32),
        table[:, 4].astype(np.float32),
        table[:, 5].astype(np.int64),
    )


PERSON: Row = (0, 0, 10, 10, 0.9, 0)
CAR: Row = (20, 20, 40, 40, 0.8, 1)
EMPTY: Row = (0, 0, 0, 0, 0.5, 0)


@pytest.mark.parametrize(
    ("a", "b", "matched", "share"),
    [
        ([PERSON, CAR], [CAR, PERSON], 2, 1.0),  # order does not matter
        ([], [], 0, 1.0),  # two empty frames agree
        ([PERSON], [], 0, 0.0),
        ([], [PERSON], 0, 0.0),
        ([PERSON, CAR], [PERSON], 1, 2 / 3),
        ([PERSON], [(*PERSON[:5], 1)], 0, 0.0),  # same place, other class
        ([PERSON], [(0, 0, 10, 5, 0.9, 0)], 1, 1.0),  # IoU exactly .5 is enough
        ([PERSON], [(0, 0, 10, 4.9, 0.9, 0)], 0, 0.0),
        ([PERSON], [PERSON, PERSON], 1, 2 / 3),  # each box is matched once
        ([EMPTY], [EMPTY], 0, 0.0),  # an empty box overlaps with nothing
    ],
)
def test_matched_boxes_are_counted(a: list[Row], b: list[Row], matched: int, share: float) -> None:
    for first, second in ((a, b), (b, a)):
        result = agreement([frame(*first)], [frame(*second)])
        assert (result.frames, result.reference, result.other) == (1, len(first), len(second))
        assert result.matched == matched
        assert result.share == pytest.approx(share)


def test_pairs_with_the_best_overlap_are_matched_first() -> None:
    """Both boxes of ``b`` overlap the first box of ``a`` by over half, but ``b[1]`` fits better."""
    a = frame((0, 0, 10, 10, 0.9, 0), (0, 3, 10, 13, 0.8, 0))
    b = frame((0, 3, 10, 13, 0.7, 0), (0, 0, 10, 9, 0.6, 0))
    assert [(i, j) for i, j, _ in match_pairs(a, b)] == [(1, 0), (0, 1)]


def test_iou_and_score_difference_are_averaged_over_matched_pairs() -> None:
    result = agreement(
        [frame(PERSON), frame(CAR)], [frame((0, 0, 10, 5, 0.7, 0)), frame((20, 20, 40, 40, 0.9, 1))]
    )
    assert result.mean_iou == pytest.approx(0.75)
    assert result.mean_score_diff == pytest.approx(0.15)
    assert result.frames == 2


def test_means_without_matched_pairs_are_nan() -> None:
    result = agreement([frame(PERSON)], [frame(CAR)])
    assert math.isnan(result.mean_iou)
    assert math.isnan(result.mean_score_diff)


def test_different_numbers_of_frames_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 and 2"):
        agreement([frame()], [frame(), frame()])
