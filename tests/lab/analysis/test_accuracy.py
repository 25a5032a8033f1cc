"""Compare eval's figures (from faster-coco-eval) with our evaluator and calculations by hand."""

import numpy as np
import pytest

from detector.core.analysis import matching
from detector.core.analysis.matching import confusion
from detector.core.types import Detections
from detector.lab.analysis.accuracy import average_precision as ap
from detector.lab.analysis.accuracy.average_precision import accuracy, difference
from detector.lab.datasets.base import make_picture

pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")

NAMES = ("person", "vehicle")
HERE, NEAR, FAR = [0, 0, 40, 40], [0, 4, 40, 44], [200, 200, 220, 220]  # HERE and NEAR: IoU 0.82


def labels(*rows, number=0, labelled=None):
    rows_of_picture = [
        (box, class_id, "ignored" in flags, "crowd" in flags, None)
        for box, class_id, *flags in rows
    ]
    return make_picture(number, f"{number}.jpg", (640, 480), rows_of_picture, labelled=labelled)


def found(*rows):
    boxes = np.array([row[0] for row in rows], np.float32).reshape(-1, 4)
    return Detections(
        boxes,
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.int64),
    )


def test_perfect_detections_have_full_precision():
    figures = accuracy([labels((HERE, 0), (FAR, 1))], [found((HERE, 0.9, 0), (FAR, 0.8, 1))], NAMES)
    assert (figures.ap, figures.ap50, figures.ap75) == (1, 1, 1)
    assert figures.ap50_interval == (1, 1)
    # The boxes are 20 x 20 (small) and 40 x 40 pixels (medium).
    assert (figures.ap_small, figures.ap_medium, figures.ap_large) == (1, 1, None)
    assert figures.curves["person"] == (1,) * 101
    assert figures.confusion.counts == ((1, 0, 0), (0, 1, 0), (0, 0, 0))


def test_detection_is_right_at_iou_thresholds_up_to_its_overlap():
    figures = accuracy([labels((HERE, 0))], [found((NEAR, 0.9, 0))], NAMES)
    assert figures.ap == pytest.approx(0.7)  # right at IoU .50 to .80, wrong at .85, .90 and .95
    assert figures.per_class["vehicle"].ap is None  # a class without boxes is not in the mean


def test_ignored_box_matches_one_detection_and_crowd_matches_any_number():
    detections = [found((FAR, 0.9, 0), (FAR, 0.8, 0), (HERE, 0.7, 0))]
    for far, ap50 in (((FAR, 0, "crowd"), 1), ((FAR, 0, "ignored"), 1 / 2), (None, 1 / 3)):
        truth = labels((HERE, 0), *([far] if far else ()))
        assert accuracy([truth], detections, NAMES).ap50 == pytest.approx(ap50)


def test_detection_of_an_unlabelled_class_is_not_counted():
    pictures = [labels((HERE, 0)), labels(number=1, labelled=frozenset({1}))]
    detections = [found((HERE, 0.5, 0)), found((FAR, 0.9, 0))]
    figures = accuracy(pictures, detections, NAMES)
    assert figures.ap50 == 1
    assert [figures.per_class[name].pictures for name in NAMES] == [1, 2]
    assert figures.confusion.counts[-1] == (0, 0, 0)
    pictures[1].labelled = None
    assert accuracy(pictures, detections, NAMES).ap50 == pytest.approx(0.5)


def random_set(seed, pictures=80):
    rng = np.random.default_rng(seed)
    truths, detections = [], []
    for number in range(pictures):
        corners = rng.uniform(0, 300, (rng.integers(0, 6), 2))
        boxes = np.concatenate([corners, corners + rng.uniform(8, 150, corners.shape)], axis=1)
        kinds = rng.choice(["", "", "", "ignored", "crowd"], len(boxes))
        rows = [
            (box.tolist(), int(rng.integers(2)), *([kind] if kind else []))
            for box, kind in zip(boxes, kinds, strict=True)
        ]
        searched = None if rng.random() < 0.8 else frozenset({int(rng.integers(2))})
        rows = [row for row in rows if searched is None or row[1] in searched]
        truths.append(labels(*rows, number=number, labelled=searched))
        near = [
            (
                (np.array(row[0]) + rng.normal(0, 6, 4)).tolist(),
                float(rng.random()),
                int(rng.choice([row[1], 0])),
            )
            for row in rows
            for _ in range(rng.integers(0, 4))
        ]
        near = [row for row in near if row[0][2] > row[0][0] and row[0][3] > row[0][1]]
        detections.append(found(*near))
    return truths, detections


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_library_and_our_evaluator_agree_at_iou_50(seed):
    """Some boxes are ignored or crowds, and some pictures were not labelled for a class."""
    truths, detections = random_set(seed)
    figures = accuracy(truths, detections, NAMES)
    for class_id, name in enumerate(NAMES):
        rows = []
        for truth, found in zip(truths, detections, strict=True):
            if truth.labelled is not None and class_id not in truth.labelled:
                continue
            mine, ours = truth.class_ids == class_id, found.class_ids == class_id
            wanted = matching.Truth(truth.boxes[mine], truth.ignored[mine], truth.crowd[mine])
            rows.append(matching.judge(found.boxes[ours], found.scores[ours], wanted))
        of_class = figures.per_class[name]
        assert of_class.ap50 == pytest.approx(ap.average_precision(rows), abs=1e-9)
        assert of_class.boxes == sum(row.wanted for row in rows) > 20
        assert of_class.ap50_interval == pytest.approx(
            ap.interval(rows, ap.average_precision), abs=1e-9
        )
        assert of_class.recall_conf25 == pytest.approx(ap.recall(rows, 0.25))
    low, high = figures.ap50_interval
    assert low < figures.ap50 < high


def test_average_precision_without_detections_is_zero():
    figures = accuracy([labels((HERE, 0))], [Detections.empty()], NAMES)
    assert (figures.ap, figures.ap50_interval) == (0, (0, 0))
    assert figures.per_class["person"].precision_conf25 is None


def test_figures_without_labelled_boxes_are_none():
    figures = accuracy([labels()], [found((HERE, 0.9, 0))], NAMES)
    assert (figures.ap, figures.ap50, figures.ap50_interval) == (None, None, (None, None))


def test_difference_between_two_engines():
    right = accuracy([labels((HERE, 0))], [found((HERE, 0.9, 0))], NAMES)
    wrong = accuracy([labels((HERE, 0))], [found((FAR, 0.9, 0))], NAMES)
    assert difference(wrong, right).ap50 == -1
    assert difference(wrong, right).ap_large is None


@pytest.mark.parametrize(
    ("truth", "detections", "expected"),
    [
        # a person detected as a vehicle
        (labels((HERE, 0)), found((HERE, 0.9, 1)), [[0, 1, 0], [0, 0, 0], [0, 0, 0]]),
        # a missed person and a false vehicle
        (labels((HERE, 0)), found((FAR, 0.9, 1)), [[0, 0, 1], [0, 0, 0], [0, 1, 0]]),
        # a detection below the threshold
        (labels((HERE, 0)), found((HERE, 0.2, 0)), [[0, 0, 1], [0, 0, 0], [0, 0, 0]]),
        # the detection with the best score is matched first
        (
            labels((HERE, 0)),
            found((HERE, 0.5, 1), (HERE, 0.9, 0)),
            [[1, 0, 0], [0, 0, 0], [0, 1, 0]],
        ),
        (labels((HERE, 0, "ignored")), found((HERE, 0.9, 1)), [[0, 0, 0]] * 3),
        (labels((HERE, 0, "crowd")), found(([1, 1, 9, 9], 0.9, 0)), [[0, 0, 0]] * 3),
        (labels(), found(), [[0, 0, 0]] * 3),
    ],
)
def test_confusion_matrix_of_single_pictures(truth, detections, expected):
    assert confusion([truth], [detections], 2, 0.25).tolist() == expected
