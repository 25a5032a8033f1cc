"""YOLOv5's and YOLOv7's head against a loop that a student can read."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from detector.core.stages.heads import AnchoredLayer, anchor_maps, anchor_maps_dense
from tests.stages.test_heads import BROKEN, check_a_known_box, check_broken_outputs, raw

ANCHORS = ((10.0, 14.0), (23.0, 27.0), (37.0, 58.0))


def layer(**more) -> AnchoredLayer:
    return AnchoredLayer(**{"anchors": ANCHORS, "classes": 2, "stride": 8, **more})


def plain_rows(output: np.ndarray, one: AnchoredLayer) -> list[list[float]]:
    rows, step = [], 5 + one.classes
    for a, (anchor_width, anchor_height) in enumerate(one.anchors):
        for y in range(output.shape[2]):
            for x in range(output.shape[3]):
                s = [
                    1 / (1 + math.exp(-t))
                    for t in output[0, a * step : (a + 1) * step, y, x].astype(float)
                ]
                cx, cy = (2 * s[0] - 0.5 + x) * one.stride, (2 * s[1] - 0.5 + y) * one.stride
                rows.append(
                    [
                        cx,
                        cy,
                        (2 * s[2]) ** 2 * anchor_width,
                        (2 * s[3]) ** 2 * anchor_height,
                        *s[4:],
                    ]
                )
    return rows


@pytest.mark.parametrize("kind", [{}, {"classes": 1}, {"classes": 80}, {"stride": 32}])
def test_dense_equals_the_plain_loop(kind):
    one = layer(**kind)
    output = raw(classes=one.classes)
    dense = anchor_maps_dense([output], [one])
    assert dense.shape == (1, 4 * 5 * 3, 5 + one.classes)
    assert dense.dtype == np.float32
    np.testing.assert_allclose(dense[0], plain_rows(output, one), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [{}, {"classes": 1}, {"classes": 80}])
@pytest.mark.parametrize("conf", [0.0, 0.001, 0.25, 0.6])
def test_head_equals_the_plain_loop_in_its_order_too(kind, conf):
    one = layer(**kind)
    output = raw(classes=one.classes)
    rows = np.array([row for row in plain_rows(output, one) if row[4] * max(row[5:]) >= conf])
    boxes, scores, class_ids = anchor_maps([output], conf, [one])
    assert len(rows) > 0
    assert class_ids.tolist() == rows[:, 5:].argmax(axis=1).tolist()
    np.testing.assert_allclose(scores, rows[:, 4] * rows[:, 5:].max(axis=1), rtol=1e-5)
    np.testing.assert_allclose(boxes[:, :2], rows[:, :2] - rows[:, 2:4] / 2, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(boxes[:, 2:], rows[:, :2] + rows[:, 2:4] / 2, rtol=1e-5, atol=1e-4)
    assert (boxes.dtype, scores.dtype, class_ids.dtype) == (np.float32, np.float32, np.int64)


@pytest.mark.parametrize("anchors", [3, 2])  # of the second one, which may have fewer
def test_layers_follow_each_other(anchors):
    one, two = layer(), layer(stride=16)
    two = replace(two, anchors=two.anchors[:anchors])
    outputs = [raw(seed=1), raw(2, 2, seed=2)[:, : anchors * 7]]
    both = anchor_maps(outputs, 0.25, [one, two])
    first, second = anchor_maps(outputs[:1], 0.25, [one]), anchor_maps(outputs[1:], 0.25, [two])
    assert len(first.scores) > 0
    assert len(second.scores) > 0
    for joined, a, b in zip(both, first, second, strict=True):
        np.testing.assert_array_equal(joined, np.concatenate([a, b]))
    assert anchor_maps_dense(outputs, [one, two]).shape == (1, 60 + 4 * anchors, 7)


def test_a_box_at_a_known_place():
    check_a_known_box(lambda maps: anchor_maps(maps, 0.25, [layer()]), 20, 12)


@pytest.mark.parametrize("value", BROKEN)
def test_broken_outputs_neither_crash_nor_warn_nor_give_boxes_that_are_none(value):
    check_broken_outputs(lambda maps: anchor_maps(maps, 0.25, [layer()]), value)
