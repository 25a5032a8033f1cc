"""Heads against a plain loop, and against numbers of independent implementations."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from detector.core.stages.heads import (
    YoloLayer,
    darknet_yolo,
    darknet_yolo_dense,
    sigmoid,
    survivors,
)

ANCHORS = ((10.0, 14.0), (23.0, 27.0), (37.0, 58.0))


def layer(**more) -> YoloLayer:
    return YoloLayer(
        **{"anchors": ANCHORS, "classes": 2, "cell_width": 16.0, "cell_height": 8.0, **more}
    )


def raw(height: int = 4, width: int = 5, classes: int = 2, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 2, (1, 3 * (5 + classes), height, width))
    return values.astype(np.float32)


def plain_rows(output: np.ndarray, one: YoloLayer) -> list[list[float]]:
    """cx, cy, w, h, objectness, class probabilities of every cell, by y, x, anchor: as darknet's
    get_yolo_box.
    """

    def logistic(t: float) -> float:
        return t if one.new_coords else 1 / (1 + math.exp(-t))

    rows = []
    step = 5 + one.classes
    for y in range(output.shape[2]):
        for x in range(output.shape[3]):
            for a, (anchor_width, anchor_height) in enumerate(one.anchors):
                t = output[0, a * step : (a + 1) * step, y, x].astype(float)
                shift = (one.scale_x_y - 1) / 2
                cx = (x + logistic(t[0]) * one.scale_x_y - shift) * one.cell_width
                cy = (y + logistic(t[1]) * one.scale_x_y - shift) * one.cell_height
                w = (4 * t[2] ** 2 if one.new_coords else math.exp(t[2])) * anchor_width
                h = (4 * t[3] ** 2 if one.new_coords else math.exp(t[3])) * anchor_height
                rows.append([cx, cy, w, h, *(logistic(score) for score in t[4:])])
    return rows


def plain_head(
    output: np.ndarray, conf: float, one: YoloLayer
) -> list[tuple[list[float], float, int]]:
    found = []
    for cx, cy, w, h, objectness, *classes in plain_rows(output, one):
        best = max(range(len(classes)), key=lambda i: classes[i])
        if objectness * classes[best] >= conf:
            found.append(
                ([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], objectness * classes[best], best)
            )
    return found


KINDS = [
    {},
    {"scale_x_y": 1.05},
    {"scale_x_y": 2.0, "new_coords": True},
    {"classes": 1},
    {"classes": 80},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("conf", [0.001, 0.25, 0.6])
def test_head_equals_the_plain_loop_in_its_order_too(kind, conf):
    one = layer(**kind)
    output = raw(classes=one.classes)
    if one.new_coords:
        output = sigmoid(output)  # such networks end in a logistic
    wanted = plain_head(output, conf, one)
    boxes, scores, class_ids = darknet_yolo([output], conf, [one])
    assert len(wanted) > 0
    assert class_ids.tolist() == [row[2] for row in wanted]
    np.testing.assert_allclose(boxes, [row[0] for row in wanted], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(scores, [row[1] for row in wanted], rtol=1e-5)
    assert (boxes.dtype, scores.dtype, class_ids.dtype) == (np.float32, np.float32, np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_dense_equals_the_plain_loop(kind):
    one = layer(**kind)
    output = raw(classes=one.classes)
    dense = darknet_yolo_dense([output], [one])
    assert dense.shape == (1, 4 * 5 * 3, 5 + one.classes)
    assert dense.dtype == np.float32
    np.testing.assert_allclose(dense[0], plain_rows(output, one), rtol=1e-5, atol=1e-4)


def test_layers_follow_each_other_in_cfg_order():
    one, two = layer(), layer(cell_width=32.0, anchors=((5.0, 5.0), (6.0, 6.0), (7.0, 7.0)))
    outputs = [raw(seed=1), raw(2, 2, seed=2)]
    both = darknet_yolo(outputs, 0.25, [one, two])
    first, second = darknet_yolo(outputs[:1], 0.25, [one]), darknet_yolo(outputs[1:], 0.25, [two])
    assert len(first.scores) > 0
    assert len(second.scores) > 0
    for joined, a, b in zip(both, first, second, strict=True):
        np.testing.assert_array_equal(joined, np.concatenate([a, b]))
    dense = darknet_yolo_dense(outputs, [one, two])
    assert dense.shape == (1, 60 + 12, 7)
    np.testing.assert_array_equal(dense[:, 60:], darknet_yolo_dense(outputs[1:], [two]))


@pytest.mark.parametrize("anchors_last", [True, False])
@pytest.mark.parametrize("empty", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
def test_maps_without_an_object_do_not_move_the_others(empty, anchors_last):
    outputs = [raw(4, 5, seed=1), raw(2, 2, seed=2), raw(1, 3, seed=3)]
    whole = survivors(outputs, 3, 0.5, anchors_last=anchors_last)
    bounds = np.cumsum([0, 60, 12, 9])
    for i in empty:
        # One has no objectness left, another no class.
        outputs[i].reshape(3, 7, -1)[:, slice(4, 5) if i == 1 else slice(5, 7)] = -3
    found = survivors(outputs, 3, 0.5, anchors_last=anchors_last)
    kept = ~np.isin(np.searchsorted(bounds, whole.at, side="right") - 1, list(empty))
    if len(empty) == 3:
        assert found is None
        return
    assert 0 < kept.sum() < len(kept)
    for ours, wanted in zip(found, whole, strict=True):
        np.testing.assert_array_equal(ours, wanted[kept])


def check_a_known_box(decode, x: float, y: float) -> None:
    """One cell, logits of 0: centre in the middle of cell (x=2, y=1), size of the anchor, score 0.5
    x 0.5.
    """
    output = np.full((1, 21, 4, 5), -50, np.float32)
    output[0, 7:14, 1, 2] = 0
    output[0, 13, 1, 2] = -1  # class 0 is better
    boxes, scores, class_ids = decode([output])
    # It reaches out: not clipped.
    np.testing.assert_allclose(boxes, [[x - 11.5, y - 13.5, x + 11.5, y + 13.5]])
    assert scores.tolist() == [0.25]  # at the threshold is kept
    assert class_ids.tolist() == [0]


def test_a_box_at_a_known_place():
    check_a_known_box(lambda maps: darknet_yolo(maps, 0.25, [layer()]), 40, 12)


BROKEN = [np.nan, np.inf, -np.inf, 60, 1e30, -1e30, 3e38]


def check_broken_outputs(decode, value: float) -> None:
    for channel in (*range(7), slice(2, 4)):  # each alone, and both sizes together
        output = np.full((1, 21, 4, 5), 2, np.float32)
        output[0, channel] = value
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            boxes, scores, _ = decode([output])
        assert np.isfinite(boxes).all()
        assert np.isfinite(scores).all()
        sides = boxes[:, 2:] - boxes[:, :2]
        assert np.isfinite(sides.prod(axis=1)).all()  # NMS needs areas
        if np.isnan(value):
            assert len(scores) == 2 * 4 * 5  # the other two anchors stand


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("kind", [{}, {"new_coords": True}])
def test_broken_outputs_neither_crash_nor_warn_nor_give_boxes_that_are_none(value, kind):
    one = layer(**kind)
    check_broken_outputs(lambda maps: darknet_yolo(maps, 0.25, [one]), value)


def test_sigmoid_is_right_at_both_ends_without_a_warning():
    x = np.float32([-1e30, -200, -88, -20, 0, 20, 200, np.inf])
    with np.errstate(over="raise", invalid="raise"):  # underflow to 0 is what is wanted
        found = sigmoid(x)
    wanted = [0, 0, math.exp(-88), 1 / (1 + math.exp(20)), 0.5, 1 / (1 + math.exp(-20)), 1, 1]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert found.dtype == np.float32
