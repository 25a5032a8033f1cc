"""Boxes and labels: where they lie, that they can be read, and that nothing else changes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from detector.stages.annotate import PALETTE, annotate
from detector.types import Detections

NAMES = ("person", "bicycle", "车 Mädchen")


def found(*boxes: tuple[float, float, float, float], class_id: int = 0) -> Detections:
    n = len(boxes)
    scores = np.linspace(0.91, 0.5, n).astype(np.float32)
    return Detections(
        np.array(boxes, np.float32).reshape(n, 4), scores, np.full(n, class_id), NAMES
    )


def touched(image: np.ndarray) -> tuple[int, int, int, int]:
    """x1, y1, x2, y2 of all pixels that are not grey 128; the outer corners."""
    ys, xs = np.nonzero((image != 128).any(axis=2))
    return int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1


def grey(height: int = 480, width: int = 640) -> np.ndarray:
    return np.full((height, width, 3), 128, np.uint8)


def test_nothing_found_nothing_drawn() -> None:
    image = grey()
    annotate(image, Detections.empty())
    assert (image == 128).all()


def test_the_box_lies_where_it_was_found() -> None:
    image = grey()
    annotate(image, found((100, 200, 300, 400)))
    x1, y1, x2, y2 = touched(image)
    assert abs(x1 - 100) <= 2
    assert y1 < 200 - 8  # the label is above
    assert abs(x2 - 300) <= 2
    assert abs(y2 - 400) <= 2
    assert (image[300, 100] == PALETTE[0]).all()
    assert (image[300, 200] == 128).all()  # inside: untouched


@pytest.mark.parametrize(
    ("why", "box"),
    [
        ("top left: no room above", (0, 0, 60, 60)),
        ("right edge: no room beside", (620, 200, 640, 300)),
        ("top right", (630, 0, 640, 20)),
        ("bottom", (10, 470, 60, 480)),
        ("the whole picture", (0, 0, 640, 480)),
    ],
)
def test_the_label_stays_inside(why: str, box: tuple[float, float, float, float]) -> None:
    """The same label with room to spare has as many pixels: none was cut off."""
    free, edge = grey(), grey()
    annotate(free, found((300, 200, 301, 201)))
    annotate(edge, found(box))
    labels = [fill_height(image) for image in (free, edge)]
    assert labels[0] == labels[1]


def fill_height(image: np.ndarray) -> tuple[int, int]:
    """Pixels of text, and rows that hold some: white or light anti-aliased ones on the first
    colour.
    """
    text = (image.min(axis=2) > 150) & (image != 128).all(axis=2)
    return int(text.sum()), int(text.any(axis=1).sum())


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (2, 4000), (4000, 2), (48, 64)], ids=str)
def test_tiny_and_narrow_pictures(size: tuple[int, int]) -> None:
    image = grey(*size)
    annotate(image, found((0, 0, size[1], size[0]), (0.4, 0.4, 0.6, 0.6)))
    assert (image != 128).any()


@pytest.mark.slow
def test_text_and_lines_grow_with_the_picture() -> None:
    heights = []
    for size in (320, 1280, 5120):
        image = grey(size, size)
        annotate(image, found((size / 4, size / 2, size / 2, size * 0.75)))
        heights.append(size / 2 - touched(image)[1])
    assert heights[0] >= 10  # pixels: readable
    assert heights[1] > heights[0] * 1.3
    assert heights[2] == pytest.approx(heights[1] * 4, rel=0.25)


def test_the_best_score_lies_on_top() -> None:
    image = grey()
    best = Detections(
        np.array([[100, 100, 300, 300]] * 2, np.float32),
        np.array([0.9, 0.3], np.float32),
        np.array([0, 1]),
        NAMES,
    )
    annotate(image, best)
    assert (image[200, 100] == PALETTE[0]).all()


def test_eighty_classes_have_eighty_colours() -> None:
    assert len(set(PALETTE)) == 80
    image = grey()
    annotate(
        image, found((100, 100, 200, 200), class_id=1234)
    )  # more classes than colours, and no name
    assert (image[150, 100] == PALETTE[1234 % 80]).all()


@pytest.mark.parametrize("class_id", range(80))
def test_every_label_can_be_read(class_id: int) -> None:
    """Contrast of text and background, as WCAG counts it, at least 3 : 1 (large text)."""
    image, background = grey(400, 400), PALETTE[class_id]
    annotate(image, found((50, 200, 350, 390), class_id=class_id))
    text = image[
        (image != 128).any(axis=2) & (image != background).any(axis=2)
    ]  # some of it a blend of both
    assert len(text) > 20
    ink = 1.0 if text.mean() > np.mean(background) else 0.0
    light, dark = sorted((ink, luminance(np.array(background))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def luminance(bgr: np.ndarray) -> float:
    linear = np.where(bgr / 255 <= 0.04045, bgr / 255 / 12.92, ((bgr / 255 + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.0722, 0.7152, 0.2126])


def test_no_large_buffer_per_frame() -> None:
    image, many = (
        grey(720, 1280),
        found(*[(i * 4, i * 2, i * 4 + 80, i * 2 + 90) for i in range(300)]),
    )
    annotate(image, many)
    tracemalloc.start()
    annotate(image, many)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 1024


@pytest.mark.parametrize("shape", [(16, 16), (90, 160), (720, 1280)])
def test_a_remark_stands_at_the_bottom_left_without_any_detection(shape):
    image = np.zeros((*shape, 3), np.uint8)
    annotate(image, Detections.empty(), remark="random weights: boxes are meaningless")
    assert image[-4:, :8].any()
    assert not image[: shape[0] // 3].any() or shape == (16, 16)
