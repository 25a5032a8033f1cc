"""Boxes of the network's input come back to the picture, by hand."""

from __future__ import annotations

import numpy as np

from detector.core.types import Detections, Letterbox


def found(*boxes: list[float]) -> Detections:
    count = len(boxes)
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.linspace(0.9, 0.5, count, dtype=np.float32),
        np.arange(count),
        ("a", "b", "c"),
        7,
    )


FIT = Letterbox(scale_x=0.5, scale_y=0.25, pad_x=10, pad_y=20, width=100, height=200)


def test_a_box_is_moved_then_scaled_on_each_axis() -> None:
    boxes = FIT.to_source(found([10, 20, 60, 70], [15, 25, 35, 45])).boxes
    assert boxes.tolist() == [[0, 0, 100, 200], [10, 20, 50, 100]]


def test_a_box_is_clipped_to_the_picture() -> None:
    boxes = FIT.to_source(found([0, 0, 61, 71], [-50, 30, 100, 40])).boxes
    assert boxes.tolist() == [[0, 0, 100, 200], [0, 40, 100, 80]]


def test_the_rest_stays_and_nothing_is_changed_in_place() -> None:
    given = found([15, 25, 35, 45], [10, 20, 60, 70])
    back = FIT.to_source(given)
    assert (back.names, back.cut) == (("a", "b", "c"), 7)
    assert back.scores is given.scores
    assert back.class_ids is given.class_ids
    assert given.boxes[0].tolist() == [15, 25, 35, 45]
    assert back.boxes.dtype == np.float32
    none = found()
    assert FIT.to_source(none) is none
