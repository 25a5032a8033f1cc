"""Classes are mapped to groups before NMS."""

import numpy as np

from detector.core.stages.nms import map_classes, nms

GROUPS = ((0,), (1, 2))  # person; vehicle: car and truck


def dense(*rows):
    return np.array([rows], np.float32)


def test_box_yields_each_group_with_the_best_score_of_its_members():
    candidates = map_classes(dense([10, 10, 4, 6, 0.5, 0.8, 0.2, 0.6, 0.9]), 0.05, GROUPS)
    assert candidates.boxes.tolist() == [[8, 7, 12, 13]] * 2
    # The score of "vehicle" is not the sum of car and truck.
    assert candidates.scores.tolist() == np.float32([0.4, 0.3]).tolist()
    assert candidates.class_ids.tolist() == [0, 1]  # the cow is in no group


def test_score_equal_to_the_threshold_is_kept():
    rows = dense([10, 10, 4, 4, 0.5, 0.5, 0, 0, 0], [10, 10, 4, 4, 0.5, 0.49, 0, 0, 0])
    assert map_classes(rows, 0.25, GROUPS).scores.tolist() == [0.25]


def test_lorry_detected_as_car_and_as_truck_is_one_vehicle():
    rows = dense([20, 20, 10, 10, 0.9, 0, 0.8, 0.1, 0], [20, 20, 10, 11, 0.9, 0, 0.1, 0.7, 0])
    grouped = nms(map_classes(rows, 0.2, GROUPS), iou=0.65, max_det=300)
    separate = nms(map_classes(rows, 0.2, ((0,), (1,), (2,))), iou=0.65, max_det=300)
    assert len(grouped) == 1
    assert len(separate) == 2


def test_rows_with_nan_or_infinity_are_dropped():
    rows = dense(
        [10, 10, 4, 4, np.nan, 1, 1, 1, 1],
        [np.inf, 10, 4, 4, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, np.nan, 0, 0, 0],
    )
    assert len(map_classes(rows, 0.001, GROUPS).scores) == 0


def test_arrays_are_empty_without_candidates():
    candidates = map_classes(dense([10, 10, 4, 4, 0, 1, 1, 1, 1]), 0.001, GROUPS)
    assert (candidates.boxes.shape, candidates.class_ids.dtype) == ((0, 4), np.int64)
