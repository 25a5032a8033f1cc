"""Heads that decode maps with anchors (darknet's and YOLOv5's), compared with plain loops."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from detector.core.stages.anchor_maps import AnchoredLayer, anchor_maps, anchor_maps_dense
from detector.core.stages.heads import (
    YoloLayer,
    darknet_yolo,
    darknet_yolo_dense,
    sigmoid,
    survivors,
)

ANCHORS = ((10.0, 14.0), (23.0, 27.0), (37.0, 58.0))


yolo_layer = partial(YoloLayer, anchors=ANCHORS, classes=2, cell_width=16.0, cell_height=8.0)
anchored_layer = partial(AnchoredLayer, anchors=ANCHORS, classes=2, stride=8)


def random_output(height: int = 4, width: int = 5, classes: int = 2, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 2, (1, 3 * (5 + classes), height, width))
    return values.astype(np.float32)


def plain_sigmoid(t: float) -> float:
    return 1 / (1 + math.exp(-t))


def darknet_rows(output: np.ndarray, layer: YoloLayer) -> list[list[float]]:
    """Return cx, cy, w, h, objectness and class probabilities of every cell, in the order y, x,
    anchor, like darknet's get_yolo_box."""
    rows, step = [], 5 + layer.classes
    for y in range(output.shape[2]):
        for x in range(output.shape[3]):
            for a, (anchor_width, anchor_height) in enumerate(layer.anchors):
                t = output[0, a * step : (a + 1) * step, y, x].astype(float)
                s = t if layer.new_coords else [plain_sigmoid(value) for value in t]
                shift = (layer.scale_x_y - 1) / 2
                cx = (x + s[0] * layer.scale_x_y - shift) * layer.cell_width
                cy = (y + s[1] * layer.scale_x_y - shift) * layer.cell_height
                w = (4 * t[2] ** 2 if layer.new_coords else math.exp(t[2])) * anchor_width
                h = (4 * t[3] ** 2 if layer.new_coords else math.exp(t[3])) * anchor_height
                rows.append([cx, cy, w, h, *s[4:]])
    return rows


def anchored_rows(output: np.ndarray, layer: AnchoredLayer) -> list[list[float]]:
    """Return rows like ``darknet_rows``, but in YOLOv5's and YOLOv7's order: anchor, y, x."""
    rows, step = [], 5 + layer.classes
    for a, (anchor_width, anchor_height) in enumerate(layer.anchors):
        for y in range(output.shape[2]):
            for x in range(output.shape[3]):
                s = [
                    plain_sigmoid(t)
                    for t in output[0, a * step : (a + 1) * step, y, x].astype(float)
                ]
                cx, cy = (2 * s[0] - 0.5 + x) * layer.stride, (2 * s[1] - 0.5 + y) * layer.stride
                w, h = (2 * s[2]) ** 2 * anchor_width, (2 * s[3]) ** 2 * anchor_height
                rows.append([cx, cy, w, h, *s[4:]])
    return rows


class Kind(NamedTuple):
    layer: Callable[..., Any]
    head: Callable[..., Any]
    dense: Callable[..., np.ndarray]
    plain: Callable[..., list[list[float]]]

    def one_layer(self, **more: Any) -> tuple[Any, np.ndarray]:
        """Return a layer and a random output of it."""
        layer = self.layer(**more)
        output = random_output(classes=layer.classes)
        # Networks with new_coords apply the sigmoid themselves.
        return layer, sigmoid(output) if getattr(layer, "new_coords", False) else output


DARKNET = Kind(yolo_layer, darknet_yolo, darknet_yolo_dense, darknet_rows)
ANCHORED = Kind(anchored_layer, anchor_maps, anchor_maps_dense, anchored_rows)
NEW_COORDINATES = {"scale_x_y": 2.0, "new_coords": True}
KINDS = [
    *(
        (kind, more)
        for kind in (DARKNET, ANCHORED)
        for more in ({}, {"classes": 1}, {"classes": 80})
    ),
    (DARKNET, {"scale_x_y": 1.05}),
    (DARKNET, NEW_COORDINATES),
    (ANCHORED, {"stride": 32}),
]


@pytest.mark.parametrize(("kind", "more"), KINDS)
@pytest.mark.parametrize("conf", [0.0, 0.001, 0.25, 0.6])
def test_head_equals_the_plain_loop_in_the_same_order(kind, more, conf):
    layer, output = kind.one_layer(**more)
    rows = np.array([row for row in kind.plain(output, layer) if row[4] * max(row[5:]) >= conf])
    boxes, scores, class_ids = kind.head([output], conf, [layer])
    assert len(rows) > 0
    assert class_ids.tolist() == rows[:, 5:].argmax(axis=1).tolist()
    np.testing.assert_allclose(scores, rows[:, 4] * rows[:, 5:].max(axis=1), rtol=1e-5)
    np.testing.assert_allclose(boxes[:, :2], rows[:, :2] - rows[:, 2:4] / 2, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(boxes[:, 2:], rows[:, :2] + rows[:, 2:4] / 2, rtol=1e-5, atol=1e-4)
    assert (boxes.dtype, scores.dtype, class_ids.dtype) == (np.float32, np.float32, np.int64)


@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_dense_form_equals_the_plain_loop(kind, more):
    layer, output = kind.one_layer(**more)
    dense = kind.dense([output], [layer])
    assert dense.shape == (1, 4 * 5 * 3, 5 + layer.classes)
    assert dense.dtype == np.float32
    np.testing.assert_allclose(dense[0], kind.plain(output, layer), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "other"), [(DARKNET, {"cell_width": 32.0}), (ANCHORED, {"stride": 16})]
)
@pytest.mark.parametrize("anchors", [3, 2])  # anchors of the second layer
def test_layers_are_concatenated_in_order(kind, other, anchors):
    layers = kind.layer(), kind.layer(anchors=ANCHORS[:anchors], **other)
    outputs = [random_output(seed=1), random_output(2, 2, seed=2)[:, : anchors * 7]]
    separate = [
        kind.head([output], 0.25, [layer]) for output, layer in zip(outputs, layers, strict=True)
    ]
    assert all(len(candidates.scores) > 0 for candidates in separate)
    for joined, a, b in zip(kind.head(outputs, 0.25, layers), *separate, strict=True):
        np.testing.assert_array_equal(joined, np.concatenate([a, b]))
    dense = kind.dense(outputs, layers)
    assert dense.shape == (1, 60 + 4 * anchors, 7)
    np.testing.assert_array_equal(dense[:, 60:], kind.dense(outputs[1:], layers[1:]))


@pytest.mark.parametrize("anchors_last", [True, False])
@pytest.mark.parametrize("empty", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
def test_maps_without_an_object_do_not_shift_boxes_of_other_maps(empty, anchors_last):
    outputs = [
        random_output(4, 5, seed=1),
        random_output(2, 2, seed=2),
        random_output(1, 3, seed=3),
    ]
    whole = survivors(outputs, 3, 0.5, anchors_last=anchors_last)
    bounds = np.cumsum([0, 60, 12, 9])
    for i in empty:
        # Map 1 loses its objectness; maps 0 and 2 lose their classes.
        outputs[i].reshape(3, 7, -1)[:, slice(4, 5) if i == 1 else slice(5, 7)] = -3
    reduced = survivors(outputs, 3, 0.5, anchors_last=anchors_last)
    mask = ~np.isin(np.searchsorted(bounds, whole.at, side="right") - 1, list(empty))
    if len(empty) == 3:
        assert reduced is None
        return
    assert 0 < mask.sum() < len(mask)
    for ours, expected in zip(reduced, whole, strict=True):
        np.testing.assert_array_equal(ours, expected[mask])


@pytest.mark.parametrize(("kind", "x"), [(DARKNET, 40), (ANCHORED, 20)])
def test_known_output_gives_the_known_box(kind, x):
    """In cell (x=2, y=1), logits of 0 give the cell's centre, the anchor's size and a score of
    0.5 x 0.5."""
    output = np.full((1, 21, 4, 5), -50, np.float32)
    output[0, 7:14, 1, 2] = 0
    output[0, 13, 1, 2] = -1  # class 0 scores higher
    boxes, scores, class_ids = kind.head([output], 0.25, [kind.layer()])
    expected = [[x - 11.5, 12 - 13.5, x + 11.5, 12 + 13.5]]  # boxes are not clipped
    np.testing.assert_allclose(boxes, expected)
    assert scores.tolist() == [0.25]  # equal to the threshold: kept
    assert class_ids.tolist() == [0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 60, 1e30, -1e30, 3e38])
@pytest.mark.parametrize(
    ("kind", "more"), [(DARKNET, {}), (DARKNET, {"new_coords": True}), (ANCHORED, {})]
)
def test_broken_outputs_give_finite_boxes_without_a_warning(value, kind, more):
    for channel in (*range(7), slice(2, 4)):  # each channel alone, then width and height together
        output = np.full((1, 21, 4, 5), 2, np.float32)
        output[0, channel] = value
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            boxes, scores, _ = kind.head([output], 0.25, [kind.layer(**more)])
        assert np.isfinite(boxes).all()
        assert np.isfinite(scores).all()
        sides = boxes[:, 2:] - boxes[:, :2]
        assert np.isfinite(sides[:, 0] * sides[:, 1]).all()  # NMS needs areas
        if np.isnan(value):
            assert len(scores) == 2 * 4 * 5  # boxes of the other two anchors


def test_sigmoid_of_extreme_values_does_not_overflow():
    x = np.float32([-1e30, -200, -88, -20, 0, 20, 200, np.inf])
    with np.errstate(over="raise", invalid="raise"):  # underflow to 0 is fine
        result = sigmoid(x)
    expected = [0, 0, math.exp(-88), 1 / (1 + math.exp(20)), 0.5, 1 / (1 + math.exp(-20)), 1, 1]
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert result.dtype == np.float32
