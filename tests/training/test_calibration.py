"""Half of the boxes with a calibrated score of .5 are right. Sheets show the worst pictures."""

import numpy as np
import pytest

from detector.core.analysis import matching
from model import calibration, failures
from model.evaluation import Labelled

RIGHT, WRONG, NEITHER = matching.RIGHT, matching.WRONG, matching.NEITHER


def test_fit_recovers_scale_and_shift_of_synthetic_scores():
    rng = np.random.default_rng(3)
    scores = rng.uniform(0.02, 0.98, 20000)
    right = rng.uniform(size=len(scores)) < calibration.Calibration(2.0, -0.7)(scores)
    result = calibration.fit(scores, right)
    assert result.scale == pytest.approx(2.0, abs=0.1)
    assert result.shift == pytest.approx(-0.7, abs=0.1)


def test_fit_is_finite_if_scores_separate_right_from_wrong():
    result = calibration.fit(np.array([0.2, 0.4, 0.8]), np.array([False, True, True]))
    assert result.scale > 1
    assert np.isfinite([result.scale, result.shift]).all()


def rows_with(true: calibration.Calibration, boxes: int) -> list[matching.Matches]:
    rng = np.random.default_rng(5)
    scores = rng.uniform(0.001, 0.9, boxes)
    right = rng.uniform(size=boxes) < true(scores)
    return [matching.Matches(scores, np.where(right, RIGHT, WRONG).astype(np.int8), boxes)]


def test_second_calibration_is_the_identity():
    rows = rows_with(calibration.Calibration(2.4, 1.8), 4000)
    result = calibration.fit_rows(rows)
    second = calibration.fit_rows(calibration.apply(result, rows))
    assert (second.scale, second.shift) == pytest.approx((1, 0), abs=0.02)


def test_low_scores_and_ignored_boxes_do_not_change_the_fit():
    rows = rows_with(calibration.Calibration(1.0, 0.0), 1000)
    low = matching.Matches(np.full(500, 0.002), np.full(500, RIGHT, np.int8), 500)
    ignored = matching.Matches(np.full(500, 0.8), np.full(500, NEITHER, np.int8), 0)
    assert calibration.fit_rows([*rows, low, ignored]) == calibration.fit_rows(rows)


def test_reliability_has_a_bin_for_each_tenth_of_the_score():
    row = matching.Matches(
        np.array([1.0, 0.95, 0.55, 0.52, 0.5]), np.array([RIGHT, WRONG, RIGHT, NEITHER, WRONG]), 2
    )
    bins = calibration.reliability([row, row])
    assert [each.boxes for each in bins] == [0, 0, 0, 0, 0, 4, 0, 0, 0, 4]
    assert (bins[5].mean, bins[5].right) == (0.525, 0.5)
    assert bins[5].interval == (0.5, 0.5)  # both pictures have the same share
    assert np.isnan(bins[0].mean)
    assert calibration.calibration_error(bins) == pytest.approx((0.025 + 0.475) / 2)


def test_best_threshold_maximises_mean_f1_of_both_classes():
    person = [matching.Matches(np.array([0.9, 0.6, 0.4]), np.array([RIGHT, RIGHT, WRONG]), 2)]
    vehicle = [matching.Matches(np.array([0.8, 0.3]), np.array([RIGHT, WRONG]), 1)]
    assert calibration.best_threshold([person, vehicle]) == 0.41
    assert calibration.f1(person, 0.41) == 1


def truths(*boxes, ignored=()):
    flags = np.array([at in ignored for at in range(len(boxes))], bool)
    return matching.Truth(np.array(boxes, float).reshape(-1, 4), flags, np.zeros(len(boxes), bool))


def labelled(group, person, vehicle=None):
    return Labelled(np.zeros((100, 100, 3), np.uint8), group, True, (person, vehicle), "a.jpg")


def rows(*boxes):
    scores = np.array([[score, 0] for _, score in boxes], np.float32).reshape(-1, 2)
    return np.array([box for box, _ in boxes], np.float32).reshape(-1, 4), scores


@pytest.mark.parametrize(
    ("group", "cost"),
    [("coco", 0.2 + 0.5 * 0.1), ("road", 0.2)],  # road: boxes without an object cost nothing
)
def test_cost_depends_on_the_size_of_missed_objects_and_the_score_of_wrong_boxes(group, cost):
    truth = truths([0, 0, 20, 20], [50, 50, 80, 80], [0, 80, 20, 100], ignored=[2])
    result = rows(([50, 50, 80, 80], 0.9), ([90, 0, 100, 10], 0.5), ([0, 80, 20, 100], 0.4))
    failure = failures.judge_failure(result, labelled(group, truth))
    assert failure.cost == pytest.approx(cost)
    assert [box.colour for box in failure.truth] == [failures.RED, failures.GREEN, failures.GREY]
    colours = [box.colour for box in failure.found]
    assert colours == [failures.GREEN, failures.ORANGE, failures.GREY]


def test_sheets_show_the_worst_pictures_first(tmp_path):
    pictures = [labelled("coco", truths([0, 0, side, side])) for side in (10, 40, 20)]
    worst = failures.worst(lambda image: rows(), pictures, 2)
    assert [failure.cost for failure in worst] == pytest.approx([0.4, 0.2])
    (sheet,) = failures.write_sheets(worst, tmp_path / "new")
    assert sheet.name == "sheet-1.jpg"
    assert sheet.read_bytes()[:2] == b"\xff\xd8"
