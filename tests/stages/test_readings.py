"""Readings of outputs, compared with plain loops and with numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from detector.core.models.layouts.anchor_free import anchor_free
from detector.core.models.layouts.base import heads_of
from detector.core.models.layouts.corners import corners
from detector.core.models.layouts.decoded import decoded
from detector.core.models.layouts.end_to_end import finished
from detector.core.models.layouts.grid import grid
from detector.core.models.layouts.queries import queries
from detector.core.stages.nms import nms
from detector.core.stages.readings import (
    MOST_CLASSES,
    NOT_WHOLE,
    Columns,
    Reading,
    read_list,
    read_rows,
)

RNG = np.random.default_rng(11)
GRID = grid(64, 96, (8, 16, 32))
JOINED = queries(64, 96, "joined")
LOGITS = queries(64, 96, "logits")
CORNERS = corners(64, 96)
CELLS = 126  # cells of a 96x64 input at strides 8, 16 and 32


def head_of(reading: Reading):
    return heads_of(reading, 3)[0]


def rows(count: int, classes: int = 3) -> np.ndarray:
    values = RNG.uniform(0, 1, (1, count, 5 + classes)).astype(np.float32)
    values[..., :4] *= 60
    return values


def best_of(box, objectness: float, scores, conf: float):
    cx, cy, w, h = box
    best = max(range(len(scores)), key=lambda at: scores[at])
    if objectness * scores[best] < conf:
        return []
    corners = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
    return [(corners, objectness * scores[best], best)]


def plain_decoded(output: np.ndarray, conf: float):
    return [
        candidates
        for row in output[0].tolist()
        for candidates in best_of(row[:4], row[4], row[5:], conf)
    ]


def with_objectness(rows: np.ndarray) -> np.ndarray:
    """Insert an objectness of 1 between boxes and scores."""
    return np.insert(rows, 4, 1, axis=2)


def plain_yolox(output: np.ndarray, conf: float):
    candidates, at = [], 0
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
                candidates += best_of(box, row[4], row[5:], conf)
                at += 1
    assert at == output.shape[1]
    return candidates


def yolox_rows() -> np.ndarray:
    values = rows(CELLS)
    values[..., :4] = RNG.normal(0, 1, values[..., :4].shape)
    return values


def query_rows() -> np.ndarray:
    values = rows(30)[..., 1:]
    values[..., :4] /= 60
    return values


CASES = [
    (lambda: rows(50), head_of(decoded()), plain_decoded),
    (
        lambda: rows(50)[..., 1:].transpose(0, 2, 1),
        head_of(anchor_free()),
        lambda output, conf: plain_decoded(with_objectness(output.transpose(0, 2, 1)), conf),
    ),
    (yolox_rows, head_of(GRID), plain_yolox),
    (
        query_rows,
        head_of(JOINED),
        lambda output, conf: plain_decoded(
            with_objectness(output * (96, 64, 96, 64, 1, 1, 1)), conf
        ),
    ),
]


@pytest.mark.parametrize("conf", [0.0, 0.001, 0.25, 0.6])
@pytest.mark.parametrize(
    ("make", "head", "plain"), CASES, ids=["decoded", "anchor_free", "yolox", "queries"]
)
def test_head_equals_the_plain_loop_in_the_same_order(make, head, plain, conf):
    output = make()
    expected = plain(output, conf)
    boxes, scores, class_ids = head([output], conf)
    assert len(expected) > 0
    assert class_ids.tolist() == [row[2] for row in expected]
    np.testing.assert_allclose(boxes, [row[0] for row in expected], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(scores, [row[1] for row in expected], rtol=1e-5)
    assert (boxes.dtype, scores.dtype, class_ids.dtype) == (np.float32, np.float32, np.int64)
    assert not np.shares_memory(boxes, output)
    assert not np.shares_memory(scores, output)


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
def test_end_to_end_detections_are_returned_unchanged(form):
    boxes = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 9, 9], [0, 0, 0, 0]], float)
    scores, ids = np.array([0.9, 0.8, 0.2, 0.0]), np.array([1.0, 1, 0, 0])
    outputs = [np.asarray(part, np.float32) for part in FORMS[form](boxes, scores, ids)]
    candidates = read_list(outputs, 0.25, reading=finished(form))
    np.testing.assert_array_equal(candidates.boxes, boxes[:2])
    assert candidates.class_ids.tolist() == [1, 1]
    assert len(read_list(outputs, 0.0, reading=finished(form)).scores) == 3, (
        "padding rows are not detections"
    )
    detections = nms(candidates, iou=None, max_det=300, names=("a", "b"))
    assert len(detections) == 2, "equal boxes stay: the network has already suppressed duplicates"
    assert not np.shares_memory(candidates.boxes, outputs[0])


def test_nms_without_iou_still_sorts_and_limits_detections_and_filters_classes():
    candidates = read_list(
        [np.array([[[0, 0, 9, 9, s, c] for s, c in ((0.3, 0), (0.9, 1), (0.5, 0))]], np.float32)],
        0.25,
        reading=finished(),
    )
    detections = nms(candidates, iou=None, max_det=2)
    np.testing.assert_allclose(detections.scores, [0.9, 0.5])
    assert detections.cut == 1
    assert nms(candidates, iou=None, max_det=9, classes=[0]).class_ids.tolist() == [0, 0]


@pytest.mark.parametrize("as_list", [False, True])
def test_objectness_and_lists_of_logits_pass_through_a_sigmoid(as_list):
    boxes = np.array([[[10, 20, 30, 40], [1, 2, 3, 4]]], np.float32)
    first, second = Columns(1), Columns(2)
    if as_list:  # boxes, scores, class ids
        reading = Reading(Columns(0), first, form="xyxy", values="logits", classes=second)
        outputs = [boxes, np.array([[2.0, -9.0]], np.float32), np.array([[1.0, 0.0]], np.float32)]
        expected, read = 1 / (1 + math.exp(-2)), read_list
    else:  # boxes, scores of two classes, objectness
        reading = Reading(Columns(0), first, form="xyxy", values="logits", objectness=second)
        scores = np.array([[[0.0, 2.0], [9.0, 9.0]]], np.float32)
        outputs = [boxes, scores, np.array([[1.0, -9.0]], np.float32)]
        expected, read = 1 / (1 + math.exp(-2)) / (1 + math.exp(-1)), read_rows
    candidates = read(outputs, 0.25, reading=reading)
    assert candidates.class_ids.tolist() == [1]
    np.testing.assert_allclose(candidates.scores, [expected], rtol=1e-6)
    np.testing.assert_allclose(candidates.boxes, [[10, 20, 30, 40]])


def test_logits_of_queries_pass_through_a_sigmoid():
    boxes = np.array([[[0.5, 0.5, 0.25, 0.5]]], np.float32)
    logits = np.array([[[0.0, 2.0]]], np.float32)
    candidates = read_rows([logits, boxes], 0.25, reading=LOGITS)
    np.testing.assert_allclose(candidates.boxes, [[36, 16, 60, 48]] * 2)
    assert candidates.class_ids.tolist() == [0, 1]  # one query may give both classes, as in RT-DETR
    np.testing.assert_allclose(candidates.scores, [0.5, 1 / (1 + math.exp(-2))], rtol=1e-6)


def test_corners_equal_the_plain_loop():
    random = np.random.default_rng(5)
    boxes = np.sort(random.random((1, 40, 1, 2, 2)), axis=3).reshape(1, 40, 1, 4)
    boxes, scores = boxes.astype(np.float32), random.random((1, 40, 3)).astype(np.float32)
    scores[0, 7] = np.nan
    candidates = read_rows([boxes, scores], 0.6, reading=CORNERS)
    sides = np.array([96, 64] * 2)
    expected = [
        (box * sides, row.max(), row.argmax())
        for (box,), row in zip(boxes[0], scores[0], strict=True)
        if row.max() >= 0.6
    ]
    assert 10 < len(expected) < 40
    np.testing.assert_allclose(candidates.boxes, [row[0] for row in expected], rtol=1e-6)
    assert candidates.scores.tolist() == [row[1] for row in expected]
    assert candidates.class_ids.tolist() == [row[2] for row in expected]
    assert not np.shares_memory(candidates.boxes, boxes)


def test_box_forms_and_units_are_converted():
    box = np.array([[[0.25, 0.5, 0.75, 1.0]]], np.float32)
    scores = np.array([[[0.9]]], np.float32)
    expected = {
        "xyxy": [24, 32, 72, 64],
        "yxyx": [48, 16, 96, 48],
        "xywh": [24, 32, 96, 96],
        "cxcywh": [-12, 0, 60, 64],
    }
    for form, right in expected.items():
        reading = Reading(Columns(0), Columns(1), form=form, unit=(96.0, 64.0))
        candidates = read_rows([box, scores], 0.5, reading=reading)
        np.testing.assert_allclose(candidates.boxes, [right], err_msg=form)


def test_background_counts_in_the_softmax_but_is_not_a_class():
    boxes = np.zeros((1, 2, 4), np.float32)
    scores = np.log(np.array([[[1, 2, 5], [7, 2, 1]]], np.float32))
    last = Reading(Columns(0), Columns(1), values="softmax", background="last")
    candidates = read_rows([boxes, scores], 0.1, reading=last)
    assert candidates.class_ids.tolist() == [1, 0]
    np.testing.assert_allclose(candidates.scores, [2 / 8, 7 / 10], rtol=1e-6)
    first = Reading(Columns(0), Columns(1), values="softmax", background="first")
    candidates = read_rows([boxes, scores], 0.15, reading=first)
    assert candidates.class_ids.tolist() == [1, 0]
    np.testing.assert_allclose(candidates.scores, [5 / 8, 2 / 10], rtol=1e-6)


def test_background_column_of_logits_is_dropped():
    """RF-DETR applies a sigmoid to each class, and its last column means "no object"."""
    boxes = np.zeros((1, 1, 4), np.float32)
    scores = np.array([[[0.0, -1.0, 9.0]]], np.float32)
    reading = Reading(Columns(0), Columns(1), values="logits", background="last")
    candidates = read_rows([boxes, scores], 0.4, reading=reading)
    assert (candidates.class_ids.tolist(), candidates.scores.tolist()) == ([0], [0.5])


def test_row_with_several_classes_yields_a_detection_for_each_class():
    boxes = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    scores = np.array([[[0.6, 0.2, 0.7], [0.1, 0.5, 0.1]]], np.float32)
    reading = Reading(Columns(0), Columns(1), form="xyxy", several=True)
    candidates = read_rows([boxes, scores], 0.5, reading=reading)
    assert candidates.class_ids.tolist() == [0, 2, 1]
    np.testing.assert_array_equal(candidates.boxes[:, 0], [0, 0, 4])


def test_transposed_scores_match_boxes_in_rows():
    """PP-YOLOE without its NMS gives boxes [1, N, 4] and scores [1, C, N]."""
    boxes = np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]], np.float32)
    scores = np.array([[[0.1, 0.8], [0.9, 0.3], [0.0, 0.0]]], np.float32)
    reading = Reading(Columns(0), Columns(1, across=True), form="xyxy")
    candidates = read_rows([boxes, scores], 0.5, reading=reading)
    assert candidates.class_ids.tolist() == [1, 0]
    np.testing.assert_array_equal(candidates.boxes, boxes[0])


def test_list_with_a_count_and_labels_from_1_is_read():
    """As in TensorFlow, boxes are (y, x, y, x) in 0..1, and rows after the count are invalid."""
    boxes = np.array([[[0.25, 0.5, 0.5, 1.0], [0, 0, 1, 1]]], np.float32)
    outputs = [boxes, np.float32([[0.9, 0.9]]), np.float32([[1, 3]]), np.float32([1])]
    reading = Reading(
        Columns(0),
        Columns(1, 0, 1),
        form="yxyx",
        unit=(96.0, 64.0),
        classes=Columns(2, 0, 1),
        first_class=1,
        count=3,
    )
    candidates = read_list(outputs, 0.5, reading=reading)
    assert candidates.class_ids.tolist() == [0]
    np.testing.assert_allclose(candidates.boxes, [[48, 16, 96, 32]])


def class_ids_of(classes, scores, **more):
    table = np.tile(np.float32([10, 20, 30, 40, 0, 0]), (len(classes), 1))
    table[:, 4], table[:, 5] = scores, classes
    reading = replace(finished(), **more)
    return read_list([table[None]], 0.25, reading=reading).class_ids.tolist()


def test_invalid_class_ids_are_kept_and_background_is_dropped():
    assert class_ids_of([0, 1, 2], [0.9, 0.8, 0.7], first_class=1) == [-1, 0, 1]
    assert class_ids_of([0, 1, 2], [0.9, 0.8, 0.7], first_class=1, background="first") == [0, 1]
    assert class_ids_of([0, 1, -1], [0.9, 0.8, 0.7], first_class=1, background="first") == [0, -2]
    assert class_ids_of([-1, 2e9, 0.6, 1.004], [0.9] * 4) == [-1, MOST_CLASSES, NOT_WHOLE, 1]


def test_padding_rows_of_a_list_are_dropped():
    assert class_ids_of([-1, -1, 7.5, 3], [0, -1, 0.1, 0.9]) == [3]
