"""Letterbox geometries, compared with their definitions written out."""

import cv2
import numpy as np
import pytest

from detector.core.stages import preprocess
from detector.core.stages.preprocess import letterbox, place, smallest_input
from detector.core.types import GEOMETRIES, Detections

RNG = np.random.default_rng(1)
SHAPES = [(360, 640), (640, 360), (416, 416), (241, 427), (16, 16), (1, 999), (720, 1280)]


def picture(height: int, width: int) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def expected(image: np.ndarray, height: int, width: int, geometry: str) -> np.ndarray:
    # No special ARM64 code handles six channels.
    (h, w), image_of_six_channels = image.shape[:2], np.dstack([image, image])
    if geometry == "stretch":
        return cv2.resize(image_of_six_channels, (width, height), interpolation=cv2.INTER_LINEAR)[
            ..., 2::-1
        ]
    scale = min(width / w, height / h)
    if geometry in ("centre", "top-left"):
        inner = (max(1, round(w * scale)), max(1, round(h * scale)))
        left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
        if geometry == "top-left":
            left = top = 0
    else:
        inner = (max(1, int(w * scale)), max(1, int(h * scale)))
        left = top = 0
    canvas = np.full((height, width, 3), 114, np.uint8)
    small = (
        image
        if inner == (w, h)
        else cv2.resize(image_of_six_channels, inner, interpolation=cv2.INTER_LINEAR)
    )
    canvas[top : top + inner[1], left : left + inner[0]] = small[..., 2::-1]
    return canvas


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_letterbox_equals_its_definition(geometry, shape):
    image = picture(*shape)
    before = image.copy()
    slot = np.full((2, 256, 416, 3), 7, np.uint8)
    letterbox(image, slot[1], geometry=geometry)
    assert np.array_equal(slot[1], expected(image, 256, 416, geometry))
    assert np.array_equal(image, before), "the source picture is written to"
    assert (slot[0] == 7).all(), "another row of the slot is written to"


# With the first size, ``resize`` uses a nudge. With the second, it uses none, as each of NUDGES
# would change a row. The third is too narrow for nudges to be tried. The last is half of 640x360.
@pytest.mark.skipif(preprocess.ARM64, reason="machine: x86's cv2.resize is the reference")
@pytest.mark.parametrize("size", [(416, 234), (416, 62), (16, 155), (320, 180)])
@pytest.mark.parametrize("shape", [(360, 640), (360, 640, 3), (415, 866)])
def test_arm64_resizes_like_x86(monkeypatch, shape, size):
    image, resize = np.random.default_rng(1).integers(0, 256, shape, np.uint8), cv2.resize

    def resize_by_kleidicv_or_carotene(source, size, fx=0.0, fy=0.0, **options):
        scaled, height = resize(source, size, fx=fx, fy=fy, **options), source.shape[0]
        fits = size is not None or abs(height * fy - scaled.shape[0]) < 1e-7
        mean_of_four = scaled.ndim == 2 and height == 2 * scaled.shape[0]
        return scaled ^ (fits and source[0, 0].size <= 4 and not mean_of_four)

    monkeypatch.setattr(preprocess, "ARM64", True)
    monkeypatch.setattr(cv2, "resize", resize_by_kleidicv_or_carotene)
    preprocess._find_nudge.cache_clear()
    assert np.array_equal(preprocess.resize(image, size), resize(image, size))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_boxes_are_mapped_back_to_the_picture(geometry):
    image = np.zeros((540, 960, 3), np.uint8)
    fit = letterbox(image, np.zeros((416, 416, 3), np.uint8), geometry=geometry)
    corners = np.array([[0, 0, 960, 540], [100, 50, 200, 400]], np.float32)
    scale = np.array([fit.scale_x, fit.scale_y] * 2, np.float32)
    inside = corners * scale + np.array([fit.pad_x, fit.pad_y] * 2, np.float32)
    detections = Detections(inside, np.ones(2, np.float32), np.zeros(2, np.int64))
    assert fit.to_source(detections).boxes == pytest.approx(corners, abs=1e-3)


def test_boxes_are_clipped_to_the_picture():
    fit = letterbox(
        np.zeros((100, 200, 3), np.uint8), np.zeros((64, 64, 3), np.uint8), geometry="stretch"
    )
    detections = Detections(
        np.array([[-5, -5, 99, 99]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64)
    )
    assert fit.to_source(detections).boxes.tolist() == [[0, 0, 200, 100]]


def test_odd_padding_is_larger_on_the_right():
    slot = np.zeros((8, 8, 3), np.uint8)
    letterbox(np.zeros((8, 5, 3), np.uint8), slot, geometry="centre")
    assert [bool((slot[:, x] == 114).all()) for x in range(8)] == [True] + [False] * 5 + [True] * 2


def test_unknown_geometry_is_refused():
    with pytest.raises(ValueError, match=r"top-left-truncate.*'fit'"):
        letterbox(picture(4, 4), np.zeros((8, 8, 3), np.uint8), geometry="fit")


@pytest.mark.parametrize(
    ("longest", "picture", "size"),
    [
        (640, (1280, 720), (384, 640)),  # 360 rows: the next multiple of 32
        (640, (720, 1280), (640, 384)),
        (640, (640, 640), (640, 640)),
        (640, (100, 100), (640, 640)),  # small pictures are enlarged
        (416, (800, 450), (256, 416)),  # 234 rows
        (640, (1000, 5), (32, 640)),
        (640, (5000, 1), (32, 640)),  # less than half a row when scaled
    ],
)
def test_smallest_input_holds_the_picture(longest, picture, size):
    assert smallest_input(longest, 32, *picture) == size
    height, width = size
    left, top, inner_width, inner_height, _ = place(*picture, width, height, "centre")
    assert inner_width == width or inner_height == height
    assert left + inner_width <= width
    assert top + inner_height <= height
    assert min(left, top) == 0, "the longest side is full"
