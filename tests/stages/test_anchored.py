"""YOLOv5's and YOLOv7's head against a loop that a student can read."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from detector.core.stages.heads import AnchoredLayer, anchor_maps, anchor_maps_dense

ANCHORS = ((10.0, 14.0), (23.0, 27.0), (37.0, 58.0))


def layer(**more) -> AnchoredLayer:
    return AnchoredLayer(**{"anchors": ANCHORS, "classes": 2, "stride": 8, **more})


def raw(height: int = 4, width: int = 5, classes: int = 2, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 2, (1, 3 * (5 + classes), height, width))
    return values.astype(np.float32)


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
    """One cell, logits of 0: centre in the middle of cell (x=2, y=1), size of the anchor, score 0.5
    x 0.5.
    """
    output = np.full((1, 21, 4, 5), -50, np.float32)
    output[0, 7:14, 1, 2] = 0
    output[0, 13, 1, 2] = -1  # class 0 is better
    boxes, scores, class_ids = anchor_maps([output], 0.25, [layer()])
    np.testing.assert_allclose(
        boxes, [[20 - 11.5, 12 - 13.5, 20 + 11.5, 12 + 13.5]]
    )  # reaches out: not clipped
    assert scores.tolist() == [0.25]  # at the threshold is kept
    assert class_ids.tolist() == [0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 60, 1e30, -1e30, 3e38])
def test_broken_outputs_neither_crash_nor_warn_nor_give_boxes_that_are_none(value):
    for channel in (*range(7), slice(2, 4)):
        output = np.full((1, 21, 4, 5), 2, np.float32)
        output[0, channel] = value
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            boxes, scores, _ = anchor_maps([output], 0.25, [layer()])
        assert np.isfinite(boxes).all()
        assert np.isfinite(scores).all()
        if np.isnan(value):
            assert len(scores) == 2 * 4 * 5  # the other two anchors stand
