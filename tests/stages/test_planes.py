"""Resizing and drawing in YUV planes, compared with the same operations in BGR."""

import cv2
import numpy as np
import pytest

from detector.core.stages.annotate import PALETTE, Style, annotate, lay_out, pixelate
from detector.core.stages.labels import render
from detector.core.stages.planes import Rect, Shade, draw_boxes, draw_label, fill_areas, shades
from detector.core.stages.preprocess import GEOMETRIES, letterbox, yuv_to_rgb
from detector.core.types import Colours, Detections, Image, Planes
from tests.covering import covering
from tests.planes import BT601, BT709, FULL_RANGE, bgr_of, planes_of, yuv_of

COLOURS = {"601": BT601, "709": BT709, "full range": FULL_RANGE}
# RGB and its Y, U, V by ITU-R BT.601-7 and BT.709-6, rounded.
KNOWN = [
    (BT601, (255, 255, 255), (235, 128, 128)),
    (BT601, (0, 0, 0), (16, 128, 128)),
    (BT601, (255, 0, 0), (81, 90, 240)),
    (BT601, (0, 255, 0), (145, 54, 34)),
    (BT709, (255, 0, 0), (63, 102, 240)),
    (BT709, (0, 0, 255), (32, 240, 118)),
    (FULL_RANGE, (255, 255, 255), (255, 128, 128)),
    (FULL_RANGE, (0, 0, 255), (29, 255, 107)),
]


def smooth(height: int, width: int) -> Image:
    rows, columns = np.mgrid[0:height, 0:width]
    parts = [rows * 200 / height + 20, columns * 200 / width + 20, (rows + columns) * 0.2 + 40]
    image: Image = np.clip(np.dstack(parts), 0, 255).astype(np.uint8)
    return image


def noise(height: int, width: int) -> Planes:
    chance = np.random.default_rng(5)
    y = chance.integers(16, 236, (height, width), np.uint8)
    u, v = (chance.integers(90, 160, (height // 2, width // 2), np.uint8) for _ in "uv")
    return Planes(y, u, v, BT601, bgr_of)


@pytest.mark.parametrize(("colours", "rgb", "yuv"), KNOWN)
def test_known_colours_convert_both_ways(
    colours: Colours, rgb: tuple[int, ...], yuv: tuple[int, ...]
) -> None:
    converted = yuv_of(np.array(rgb[::-1], np.uint8), colours)
    assert np.minimum(np.rint(converted), 255).tolist() == list(yuv)
    back = yuv_to_rgb(colours) @ np.array([*converted, 1.0])
    assert np.abs(back - rgb).max() < 0.01


@pytest.mark.parametrize(
    ("geometry", "colours", "size"),
    covering(GEOMETRIES, COLOURS.values(), [(96, 160), (64, 64), (120, 90)]),
)
def test_letterbox_of_planes_equals_that_of_bgr(
    geometry: str, colours: Colours, size: tuple[int, int]
) -> None:
    image = smooth(*size)
    ours, theirs = (np.full((64, 64, 3), 7, np.uint8) for _ in range(2))
    fit = letterbox(planes_of(image, colours), ours, geometry=geometry)
    assert fit == letterbox(image, theirs, geometry=geometry)
    assert np.abs(ours.astype(int) - theirs).max() <= 6
    padding = (theirs == 114).all(axis=2)
    assert (ours[padding] == 114).all()


@pytest.mark.parametrize("line", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("at", [(20, 20), (21, 20), (20, 21), (21, 23)])
def test_outline_has_its_colour_at_odd_and_even_pixels(line: int, at: tuple[int, int]) -> None:
    planes, before = noise(80, 96), noise(80, 96)
    last = (at[0] + 41, at[1] + 30)
    draw_boxes(planes, [(at, last)], [Shade(200, 30, 220)], line)
    mask = np.zeros((80, 96), np.uint8)
    cv2.rectangle(mask, at, last, 255, line)
    ours = planes.y != before.y
    assert (ours & (mask == 0)).sum() <= 16 * line  # cv2 rounds the corners off
    assert (planes.y[mask > 0] == 200).all()
    drawn = (planes.y == 200).reshape(40, 2, 48, 2).any(axis=(1, 3))
    ring = mask.reshape(40, 2, 48, 2).any(axis=(1, 3))
    assert (planes.u[ring] == 30).all()
    assert (planes.v[ring] == 220).all()
    assert ((planes.u == before.u) | drawn).all()


@pytest.mark.parametrize(
    "area", [(18, 18, 43, 24), (18, 19, 25, 53), (-3, 19, 24, 25), (90, 70, 120, 99), (-9, 5, 0, 8)]
)
def test_area_has_its_colour(area: Rect) -> None:
    planes, before = noise(80, 96), noise(80, 96)
    fill_areas(planes, [area], [Shade(200, 30, 220)])
    mask = np.zeros((80, 96), np.uint8)
    cv2.rectangle(mask, area[:2], (area[2] - 1, area[3] - 1), 255, cv2.FILLED)
    assert (planes.y == np.where(mask, 200, before.y)).all()
    halved = mask.reshape(40, 2, 48, 2).any(axis=(1, 3))
    assert (planes.u == np.where(halved, 30, before.u)).all()
    assert (planes.v == np.where(halved, 220, before.v)).all()


def test_box_at_the_edge_is_drawn_inside() -> None:
    planes = noise(40, 48)
    draw_boxes(planes, [((0, 0), (47, 39))], [Shade(200, 30, 220)], 5)
    assert (planes.u[0] == 30).all()
    assert (planes.v[-1] == 220).all()
    assert (planes.u[4:-4, 4:-4] != 30).any()


@pytest.mark.parametrize("x", [10, 11])
@pytest.mark.parametrize("y", [12, 13])
def test_label_at_odd_and_even_pixels_equals_bgr(x: int, y: int) -> None:
    label = render("person", 0.6, PALETTE[0], (255, 255, 255), "0.91")
    grey = np.full((64, 160, 3), 90, np.uint8)
    planes, image = planes_of(grey), grey.copy()
    draw_label(planes, label, x, y)
    label.draw(image, x, y)
    shown = bgr_of(planes)
    inside = np.s_[y : y + label.height, x : x + label.width]
    yuv = yuv_of(image)
    assert np.abs(planes.y - yuv[..., 0]).max() <= 1.5
    assert np.abs(shown[inside].astype(int) - image[inside]).mean() < 12  # chroma blurs the letters
    fill = np.s_[y : y + 2, x : x + label.width]
    assert np.abs(shown[fill].astype(int) - PALETTE[0]).max() <= 4
    outside = np.ones(grey.shape[:2], np.bool_)
    outside[y - 1 : y + label.height + 1, x - 1 : x + label.width + 1] = False
    assert (shown[outside] == bgr_of(planes_of(grey))[outside]).all()


def test_label_is_cut_at_the_edge() -> None:
    label = render("person", 0.6, PALETTE[0], (255, 255, 255))
    planes = noise(24, 32)
    draw_label(planes, label, 21, 13)
    assert planes.y[13, 21] == shades(PALETTE, BT601)[0].y


def crowd(count: int, height: int, width: int) -> Detections:
    chance = np.random.default_rng(count)
    left, top = chance.uniform(0, width * 0.8, count), chance.uniform(0, height * 0.8, count)
    sides = chance.uniform(12, height / 3, (2, count))
    boxes = np.column_stack([left, top, left + sides[0], top + sides[1]])
    np.clip(boxes, 0, [width, height] * 2, out=boxes)
    names = ("person", "vehicle", "dog")
    return Detections(
        boxes.astype(np.float32),
        np.linspace(0.9, 0.3, count, dtype=np.float32),
        np.arange(count) % 3,
        names,
    )


@pytest.mark.parametrize("count", [0, 5, 40])
@pytest.mark.parametrize("colours", COLOURS.values(), ids=COLOURS)
def test_drawing_in_planes_equals_bgr(count: int, colours: Colours) -> None:
    image = smooth(180, 320)
    planes, detections = planes_of(image, colours), crowd(count, 180, 320)
    style = Style(remark="a remark")
    annotate(planes, detections, style)
    annotate(image, detections, style)
    assert lay_out(320, 180, detections, style).dots or count < 40  # 40 boxes also have dots
    # Brightness is exact except at the edges of dots, which are anti-aliased differently.
    difference = np.abs(planes.y - yuv_of(image, colours)[..., 0])
    assert (difference > 1.5).mean() < 0.001
    blocks = planes_of(image, colours)
    for ours, theirs in ((planes.u, blocks.u), (planes.v, blocks.v)):
        # If a line half covers a chroma pixel, planes take the line's colour; BGR gives the mean.
        assert np.abs(ours.astype(int) - theirs).mean() < 12


@pytest.mark.parametrize("box", [(10, 10, 60, 70), (11, 13, 61.5, 70.2), (0, 0, 5, 5)], ids=str)
def test_blurred_box_holds_few_values_and_nothing_else_changes(box: tuple[float, ...]) -> None:
    planes, before = noise(80, 96), noise(80, 96)
    boxes = np.array([box], np.float32)
    detections = Detections(boxes, np.ones(1, np.float32), np.zeros(1, np.int64), ("person",))
    pixelate(planes, detections, frozenset({0}))
    left, top = (int(np.floor(side)) for side in box[:2])
    right, bottom = (int(np.ceil(side)) for side in box[2:])
    few = 6 * 9  # a box of 50x60 has at most this many blocks
    assert len(np.unique(planes.y[top:bottom, left:right])) <= few
    rows, columns = slice(top // 2, (bottom + 1) // 2), slice(left // 2, (right + 1) // 2)
    for ours, theirs in ((planes.u, before.u), (planes.v, before.v)):
        assert len(np.unique(ours[rows, columns])) <= few
        changed = ours != theirs
        changed[rows, columns] = False
        assert not changed.any()
    outside = np.ones((80, 96), np.bool_)
    outside[top:bottom, left:right] = False
    assert (planes.y == before.y)[outside].all()
