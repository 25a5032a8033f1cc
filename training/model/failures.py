"""Sheets of the pictures on which a model is worst: the truth next to the detections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.analysis import matching
from model.evaluation import (
    NAMES,
    PRODUCT_NMS_IOU,
    REPORTED,
    Labelled,
    Model,
    Rows,
    boxes_of,
    find_truths,
)

ON_SHEET = 6  # pictures on one sheet, one below the other
WIDTH, HEIGHT = 640, 400  # largest size of each half of a pair
GAPS = ("road", "elevated")  # sets with gaps in the labels: a box without a label may be right

GREEN, RED, ORANGE, GREY = (60, 180, 60), (40, 40, 230), (0, 140, 255), (150, 150, 150)  # BGR


@dataclass(frozen=True, slots=True)
class Box:
    xyxy: NDArray[np.float64]
    colour: tuple[int, int, int]
    text: str = ""


@dataclass(slots=True)
class Failure:
    """A picture with its true and detected boxes. ``cost``: see ``judge_failure``."""

    picture: Labelled
    cost: float
    truth: list[Box]
    found: list[Box]


def judge_failure(rows: Rows, picture: Labelled, score: float = REPORTED) -> Failure:
    """Compare the boxes that score at least ``score`` with the truth.

    A missed object costs the square root of its share of the picture's area, so large objects cost
    most. A box without an object costs the square root of its own share, times its score. In sets
    with gaps in the labels it costs nothing.
    """
    side = float(np.sqrt(np.prod(picture.image.shape[:2])))
    failure = Failure(picture, 0.0, [], [])
    for c, truth in enumerate(picture.truths):
        if truth is None:
            continue
        boxes, scores = boxes_of(rows, c, picture.image, PRODUCT_NMS_IOU)
        boxes, scores = boxes[scores >= score], scores[scores >= score]
        judged, best_scores = find_truths(boxes, scores, truth)
        for box, best_score, is_ignored in zip(
            truth.boxes, best_scores, truth.ignored | truth.crowd, strict=True
        ):
            colour = GREY if is_ignored else GREEN if best_score else RED
            failure.truth.append(Box(box, colour, f"missed {NAMES[c]}" if colour is RED else ""))
            if colour is RED:
                failure.cost += side_of(box) / side
        for box, confidence, outcome in zip(boxes, scores, judged.outcomes, strict=False):
            colour = {matching.RIGHT: GREEN, matching.WRONG: ORANGE}.get(int(outcome), GREY)
            failure.found.append(Box(box, colour, f"{NAMES[c]} {confidence:.2f}"))
            if colour is ORANGE and picture.group not in GAPS:
                failure.cost += float(confidence) * side_of(box) / side
    return failure


def side_of(box: NDArray) -> float:
    return float(np.sqrt(max(box[2] - box[0], 0) * max(box[3] - box[1], 0)))


def worst(model: Model, pictures: Sequence[Labelled], count: int) -> list[Failure]:
    """Return the ``count`` pictures with the highest cost, worst first."""
    failures = [judge_failure(model(picture.image), picture) for picture in pictures]
    return sorted(failures, key=lambda failure: -failure.cost)[:count]


def write_sheets(failures: Sequence[Failure], folder: Path) -> list[Path]:
    """Write sheet-1.jpg and so on: the truth on the left, the detections on the right."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for start in range(0, len(failures), ON_SHEET):
        pairs = [
            draw_pair(failure, number)
            for number, failure in enumerate(failures[start : start + ON_SHEET], start + 1)
        ]
        target = folder / f"sheet-{start // ON_SHEET + 1}.jpg"
        encoded, data = cv2.imencode(".jpg", np.concatenate(pairs), [cv2.IMWRITE_JPEG_QUALITY, 88])
        assert encoded
        target.write_bytes(data.tobytes())
        written.append(target)
    return written


def draw_pair(failure: Failure, number: int) -> NDArray[np.uint8]:
    """Draw the truth and the detections; return u8 BGR [HEIGHT + 24, 2 * WIDTH, 3]."""
    name = f"{number}. {failure.picture.group} {failure.picture.name}"
    height, width = failure.picture.image.shape[:2]
    scale = min(WIDTH / width, HEIGHT / height)
    size = round(width * scale), round(height * scale)
    canvas = np.full((HEIGHT + 24, 2 * WIDTH, 3), 255, np.uint8)
    for left, boxes in ((0, failure.truth), (WIDTH, failure.found)):
        picture = cv2.resize(failure.picture.image, size)
        for box in boxes:
            draw_box(picture, box, scale)
        canvas[24 : 24 + size[1], left : left + size[0]] = picture
    for left, text in ((4, f"{name}, cost {failure.cost:.2f}: truth"), (WIDTH + 4, "found")):
        write(canvas, text, (left, 17), (0, 0, 0))
    return canvas


def draw_box(picture: NDArray[np.uint8], box: Box, scale: float) -> None:
    x1, y1, x2, y2 = (round(float(value) * scale) for value in box.xyxy)
    cv2.rectangle(picture, (x1, y1), (x2, y2), box.colour, 2 if box.colour is not GREY else 1)
    if box.text and box.colour is not GREY:
        write(picture, box.text, (x1, max(y1 - 4, 12)), box.colour)


def write(picture: NDArray[np.uint8], text: str, at: tuple[int, int], colour) -> None:
    cv2.putText(picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1, cv2.LINE_AA)
