"""Heads of decoded, anchor-free, finished, YOLOX and query outputs against loops that a student can
read.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from detector.stages.heads import (
    Grid,
    anchor_free,
    anchor_free_dense,
    corners,
    corners_dense,
    decoded_rows,
    decoded_rows_dense,
    end_to_end,
    end_to_end_dense,
    queries,
    queries_dense,
    yolox,
    yolox_dense,
)
from detector.stages.heads import yolox_cells as cells_of
from detector.stages.nms import nms

RNG = np.random.default_rng(11)
GRID = Grid(64, 96)
SIZE = {"width": 96, "height": 64}


def rows(count: int, classes: int = 3) -> np.ndarray:
    """Plausible decoded rows [1, N, 5 + C]."""
    values = RNG.uniform(0, 1, (1, count, 5 + classes)).astype(np.float32)
    values[..., :4] *= 60
    return values


def corners_of(cx: float, cy: float, w: float, h: float) -> list[float]:
    return [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]


def best_of(box, objectness: float, scores, conf: float):
    best = max(range(len(scores)), key=lambda at: scores[at])
    return (
        [(corners_of(*box), objectness * scores[best], best)]
        if objectness * scores[best] >= conf
        else []
    )


def plain_decoded(output: np.ndarray, conf: float):
    return [
        found for row in output[0].tolist() for found in best_of(row[:4], row[4], row[5:], conf)
    ]


def plain_anchor_free(output: np.ndarray, conf: float):
    return [found for row in output[0].T.tolist() for found in best_of(row[:4], 1.0, row[4:], conf)]


def plain_yolox(output: np.ndarray, conf: float):
    found, at = [], 0
    for stride in (8, 16, 32):
        for y in range(64 // stride):
            for x in range(96 // stride):
                row = output[0][at].tolist()
                box = (
                    (row[0] + x) * stride,
                    (row[1] + y) * stride,
                    math.exp(row[2]) * stride,
                    math.exp(row[3]) * stride,
                )
                found += best_of(box, row[4], row[5:], conf)
                at += 1
    assert at == output.shape[1]
    return found


def plain_queries(output: np.ndarray, conf: float):
    scale = (96, 64, 96, 64)
    return [
        found
        for row in output[0].tolist()
        for found in best_of(
            [v * s for v, s in zip(row[:4], scale, strict=True)], 1.0, row[4:], conf
        )
    ]


def yolox_rows() -> np.ndarray:
    values = rows(len(cells_of(GRID)))
    values[..., :4] = RNG.normal(0, 1, values[..., :4].shape)
    return values


def query_rows() -> np.ndarray:
    values = rows(30)[..., 1:]
    values[..., :4] /= 60
    return values


CASES = [
    (lambda: rows(50), decoded_rows, plain_decoded),
    (lambda: rows(50)[..., 1:].transpose(0, 2, 1), anchor_free, plain_anchor_free),
    (yolox_rows, lambda outputs, conf: yolox(outputs, conf, grid=GRID), plain_yolox),
    (query_rows, lambda outputs, conf: queries(outputs, conf, **SIZE), plain_queries),
]


@pytest.mark.parametrize("conf", [0.0, 0.001, 0.25, 0.6])
@pytest.mark.parametrize(
    ("make", "head", "plain"), CASES, ids=["decoded", "anchor_free", "yolox", "queries"]
)
def test_head_equals_the_plain_loop_in_its_order_too(make, head, plain, conf):
    output = make()
    wanted = plain(output, conf)
    boxes, scores, class_ids = head([output], conf)
    assert len(wanted) > 0
    assert class_ids.tolist() == [row[2] for row in wanted]
    np.testing.assert_allclose(boxes, [row[0] for row in wanted], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(scores, [row[1] for row in wanted], rtol=1e-5)
    assert (boxes.dtype, scores.dtype, class_ids.dtype) == (np.float32, np.float32, np.int64)
    assert not np.shares_memory(boxes, output)
    assert not np.shares_memory(scores, output)


@pytest.mark.parametrize(
    ("make", "head", "plain"), CASES, ids=["decoded", "anchor_free", "yolox", "queries"]
)
def test_nothing_above_the_threshold(make, head, plain):
    boxes, scores, class_ids = head([make()], 1.5)
    assert boxes.shape == (0, 4)
    assert scores.shape == class_ids.shape == (0,)


def test_dense_forms_agree_with_the_heads():
    """Objectness x best class of the dense rows is the head's score, box for box."""
    pairs = [
        (rows(40), decoded_rows, decoded_rows_dense, {}),
        (rows(40)[..., 1:].transpose(0, 2, 1), anchor_free, anchor_free_dense, {}),
        (rows(40)[..., 1:], anchor_free, anchor_free_dense, {"rows": True}),
        (yolox_rows(), yolox, yolox_dense, {"grid": GRID}),
        (query_rows(), queries, queries_dense, SIZE),
    ]
    for output, head, dense, options in pairs:
        every = dense([output], **options)
        found = head([output], 0.0, **options)
        assert every.shape[:1] == (1,)
        np.testing.assert_allclose(
            found.scores, every[0, :, 4] * every[0, :, 5:].max(axis=1), rtol=1e-5
        )
        centres = (found.boxes[:, :2] + found.boxes[:, 2:]) / 2
        np.testing.assert_allclose(centres, every[0, :, :2], rtol=1e-4, atol=1e-4)


FORMS = {
    "rows": lambda boxes, scores, ids: [
        np.concatenate([boxes, scores[:, None], ids[:, None]], 1)[None]
    ],
    "batch-rows": lambda b, s, i: [
        np.concatenate([np.zeros((len(b), 1)), b, i[:, None], s[:, None]], 1)[None]
    ],
    "parts": lambda boxes, scores, ids: [boxes[None], scores[None], ids[None]],
    "boxes-with-scores": lambda b, s, i: [np.concatenate([b, s[:, None]], 1)[None], i[None]],
}


@pytest.mark.parametrize("form", FORMS)
def test_finished_detections_come_through_as_they_are(form):
    boxes = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 9, 9], [0, 0, 0, 0]], float)
    scores, ids = np.array([0.9, 0.8, 0.2, 0.0]), np.array([1.0, 1, 0, 0])
    outputs = [np.asarray(part, np.float32) for part in FORMS[form](boxes, scores, ids)]
    found = end_to_end(outputs, 0.25, form=form)
    np.testing.assert_array_equal(found.boxes, boxes[:2])
    assert found.class_ids.tolist() == [1, 1]
    assert len(end_to_end(outputs, 0.0, form=form).scores) == 3, (
        "what fills the list up is no detection"
    )
    kept = nms(found, iou=None, max_det=300, names=("a", "b"))
    assert len(kept) == 2, "twins stay: the network has chosen"
    dense = end_to_end_dense(outputs, form=form, classes=2)
    np.testing.assert_allclose(dense[0, 2], [7, 7.5, 4, 3, 0.2, 1, 0])
    assert not np.shares_memory(found.boxes, outputs[0])


def test_without_suppression_order_limit_and_classes_still_hold():
    found = end_to_end(
        [np.array([[[0, 0, 9, 9, s, c] for s, c in ((0.3, 0), (0.9, 1), (0.5, 0))]], np.float32)],
        0.25,
    )
    kept = nms(found, iou=None, max_det=2)
    np.testing.assert_allclose(kept.scores, [0.9, 0.5])
    assert kept.cut == 1
    assert nms(found, iou=None, max_det=9, classes=[0]).class_ids.tolist() == [0, 0]


def test_logits_of_queries_end_in_a_logistic():
    boxes = np.array([[[0.5, 0.5, 0.25, 0.5]]], np.float32)
    logits = np.array([[[0.0, 2.0]]], np.float32)
    found = queries([logits, boxes], 0.25, logits=True, **SIZE)
    np.testing.assert_allclose(found.boxes, [[36, 16, 60, 48]])
    np.testing.assert_allclose(found.scores, [1 / (1 + math.exp(-2))], rtol=1e-6)
    np.testing.assert_allclose(
        queries_dense([logits, boxes], logits=True, **SIZE)[0, 0, 4:], [1, 0.5, 0.880797], rtol=1e-5
    )


def test_corners_equal_the_plain_loop():
    random = np.random.default_rng(5)
    boxes = np.sort(random.random((1, 40, 1, 2, 2)), axis=3).reshape(1, 40, 1, 4)
    boxes, scores = boxes.astype(np.float32), random.random((1, 40, 3)).astype(np.float32)
    scores[0, 7] = np.nan
    found = corners([boxes, scores], 0.6, **SIZE)
    sides = np.array([SIZE["width"], SIZE["height"]] * 2)
    wanted = [
        (box * sides, row.max(), row.argmax())
        for (box,), row in zip(boxes[0], scores[0], strict=True)
        if row.max() >= 0.6
    ]
    assert 10 < len(wanted) < 40
    np.testing.assert_allclose(found.boxes, [row[0] for row in wanted], rtol=1e-6)
    assert found.scores.tolist() == [row[1] for row in wanted]
    assert found.class_ids.tolist() == [row[2] for row in wanted]
    assert not np.shares_memory(found.boxes, boxes)
    dense = corners_dense([boxes, scores], **SIZE)[0]
    np.testing.assert_allclose(dense[:, 4], 1)
    np.testing.assert_array_equal(dense[:, 5:], scores[0])
    np.testing.assert_allclose(
        dense[:, :2] - dense[:, 2:4] / 2, boxes[0, :, 0, :2] * sides[:2], atol=1e-4
    )


def broken(shape) -> np.ndarray:
    """Every kind of number that a broken network gives, in every place."""
    kinds = np.array(
        [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 88.8, 1e-45, 0.9, 0.5], np.float32
    )
    return RNG.choice(kinds, shape).astype(np.float32)


HEADS = [
    (lambda: [broken((1, 400, 8))], decoded_rows, {}),
    (lambda: [broken((1, 7, 400))], anchor_free, {}),
    (lambda: [broken((1, len(cells_of(GRID)), 8))], yolox, {"grid": GRID}),
    (lambda: [broken((1, 400, 7))], queries, SIZE),
    (lambda: [broken((1, 400, 3)), broken((1, 400, 4))], queries, {**SIZE, "logits": True}),
    (lambda: [broken((1, 400, 6))], end_to_end, {}),
    (lambda: [broken((1, 400, 1, 4)), broken((1, 400, 3))], corners, SIZE),
    (
        lambda: [broken((1, 400, 4)), broken((1, 400)), broken((1, 400))],
        end_to_end,
        {"form": "parts"},
    ),
]


@pytest.mark.parametrize(("make", "head", "options"), HEADS)
@pytest.mark.parametrize("conf", [0.0, 0.25])
def test_numbers_that_are_no_numbers_survive(make, head, options, conf):
    for _ in range(5):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = head(make(), conf, **options)
            detections = nms(found, iou=0.45, max_det=300)
        assert np.isfinite(found.boxes).all()
        assert np.isfinite(found.scores).all()
        assert (found.class_ids >= 0).all()
        assert len(detections) <= 300
