"""Average precision, recall, precision and intervals, on cases computed by hand."""

import dataclasses
import json

import numpy as np
import pytest

from detector.core.analysis.matching import NEITHER, RIGHT, WRONG, Matches, Truth, judge
from detector.core.config.schema import SelectionConfig
from detector.lab.analysis.accuracy import average_precision as ap
from detector.lab.evaluate.study import SURE
from detector.lab.session.evaluation import ClassAccuracy
from tests.conftest import CHECKOUT

HERE, SHIFTED, FAR = [0, 0, 10, 10], [0, 2, 10, 12], [50, 50, 60, 60]


def truth(*boxes, ignored=(), crowd=()):
    flags = [np.isin(np.arange(len(boxes)), which) for which in (ignored, crowd)]
    return Truth(np.array(boxes, float).reshape(-1, 4), *flags)


def outcomes(boxes, scores, labels, **more):
    return judge(
        np.array(boxes, float).reshape(-1, 4), np.array(scores, float), labels, **more
    ).outcomes.tolist()


def judged(outcomes, wanted, scores=None):
    scores = np.linspace(1, 0.5, len(outcomes)) if scores is None else np.array(scores, float)
    return Matches(scores, np.array(outcomes, np.int8), wanted)


@pytest.mark.parametrize(
    ("boxes", "scores", "labels", "expected"),
    [
        ([HERE], [0.9], truth(HERE), [RIGHT]),
        ([FAR], [0.9], truth(HERE), [WRONG]),
        ([HERE, HERE], [0.9, 0.8], truth(HERE), [RIGHT, WRONG]),  # a box matches one detection
        # the detection with the higher score matches, although it fits worse
        ([HERE, SHIFTED], [0.8, 0.9], truth(HERE), [RIGHT, WRONG]),
        ([HERE], [0.9], truth(SHIFTED, HERE), [RIGHT]),
        # a detection matches the box that fits best, not the first one
        ([HERE, SHIFTED], [0.9, 0.8], truth(SHIFTED, HERE), [RIGHT, RIGHT]),
        ([HERE, HERE], [0.9, 0.8], truth(HERE, ignored=[0]), [NEITHER, WRONG]),  # matches once
        ([HERE, HERE], [0.9, 0.8], truth(HERE, crowd=[0]), [NEITHER, NEITHER]),  # matches twice
        # overlap with a crowd is the share of the detection that the crowd covers
        ([HERE], [0.9], truth([0, 0, 100, 100], crowd=[0]), [NEITHER]),
        ([HERE], [0.9], truth([0, 0, 100, 100], ignored=[0]), [WRONG]),
        # a counted box is preferred to an ignored box that fits better
        ([HERE], [0.9], truth(SHIFTED, HERE, ignored=[1]), [RIGHT]),
        ([], [], truth(HERE), []),
        ([HERE], [0.9], truth(), [WRONG]),
    ],
)
def test_each_detection_is_right_wrong_or_neither(boxes, scores, labels, expected):
    assert outcomes(boxes, scores, labels) == expected


def test_overlap_equal_to_the_threshold_matches():
    half = [0, 0, 10, 5]
    assert outcomes([half], [0.9], truth(HERE)) == [RIGHT]
    assert outcomes([half], [0.9], truth(HERE), iou=0.51) == [WRONG]


def test_ignored_boxes_and_crowds_need_no_detection():
    assert truth(HERE, FAR, SHIFTED, ignored=[0], crowd=[1]).wanted == 1


def test_only_the_best_hundred_detections_of_a_picture_count():
    boxes, scores = [FAR] * 100 + [HERE], [0.9] * 100 + [0.1]
    assert outcomes(boxes, scores, truth(HERE)) == [WRONG] * 100


@pytest.mark.parametrize(
    ("rows", "wanted", "expected"),
    [
        ([RIGHT, RIGHT], 2, 1.0),
        ([], 2, 0.0),
        ([WRONG], 1, 0.0),
        ([WRONG, RIGHT], 1, 0.5),
        ([RIGHT, WRONG], 1, 1.0),  # false detections after full recall cost nothing
        ([NEITHER, RIGHT], 1, 1.0),
        ([RIGHT], 2, 51 / 101),  # the 51 recalls from 0 to 0.50 are reached
        ([RIGHT, WRONG, RIGHT], 2, (51 * 1 + 50 * 2 / 3) / 101),
        ([WRONG, RIGHT, RIGHT], 2, 2 / 3),  # the best precision at each recall or above it
    ],
)
def test_average_precision_equals_a_calculation_by_hand(rows, wanted, expected):
    assert ap.average_precision([judged(rows, wanted)]) == pytest.approx(expected)


def test_average_precision_sorts_the_detections_of_all_pictures_together():
    first, second = judged([WRONG], 1, [0.3]), judged([RIGHT], 0, [0.9])
    assert ap.average_precision([first, second]) == pytest.approx(1.0)


def test_figures_without_boxes_are_nan():
    empty = [judged([WRONG], 0)]
    assert np.isnan(ap.average_precision(empty))
    assert np.isnan(ap.recall(empty))
    assert np.isnan(ap.precision([judged([NEITHER], 1)]))


def test_recall_and_precision_and_unmatched_detections_at_a_score():
    rows = [
        judged([RIGHT, WRONG, NEITHER, RIGHT], 4, [0.9, 0.25, 0.25, 0.2]),
        judged([WRONG], 0, [0.1]),
    ]
    assert ap.recall(rows, 0.25) == 0.25
    assert ap.recall(rows) == 0.5
    assert ap.precision(rows, 0.25) == 0.5
    assert ap.unmatched(rows, 0.25) == 1
    assert ap.unmatched(rows) == 2


def test_interval_is_reproducible_and_contains_the_figure():
    rows = [judged([RIGHT if i % 3 else WRONG], 1, [1 - i / 50]) for i in range(40)]
    low, high = ap.interval(rows, ap.average_precision)
    assert (low, high) == ap.interval(rows, ap.average_precision)
    assert low < ap.average_precision(rows) < high


def test_interval_has_no_width_if_all_pictures_are_equal():
    assert ap.interval([judged([RIGHT], 1)] * 5, ap.average_precision) == (1.0, 1.0)


def test_figures_at_a_score_use_the_default_confidence():
    assert SelectionConfig().conf == ap.SHOWN_SCORE == SURE
    names = {field.name for field in dataclasses.fields(ClassAccuracy)}
    assert f"recall_conf{ap.SHOWN_SCORE * 100:.0f}" in names
    for name in ("eval", "evaluation", "compare"):
        schema = json.loads((CHECKOUT / "docs/schema" / f"{name}.json").read_text())
        assert f"scores of {ap.SHOWN_SCORE} or more" in str(schema)
