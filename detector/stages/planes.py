"""Boxes, labels and blocks drawn into the planes of a YUV 4:2:0 picture.

Brightness is drawn pixel by pixel, as in BGR. A colour stands for 2x2 pixels: it is drawn wherever
one of the four is, so that a line of one pixel has its colour at odd places too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.stages.labels import Color, Label
from detector.types import Colours, Image, Planes

Point = tuple[int, int]  # x, y, pixels
SHIFT = 2  # bits behind the point in the middle and the radius of a dot


class Shade(NamedTuple):
    y: int
    u: int
    v: int


class LabelPlanes(NamedTuple):
    """A label's picture for a place at even or odd pixels. ``u`` and ``v`` begin at the even pixel
    at or before its corner."""

    y: NDArray[np.uint8]
    u: NDArray[np.uint8]
    v: NDArray[np.uint8]


def bgr_to_yuv(image: Image, colours: Colours) -> NDArray[np.float32]:
    """u8 BGR [..., 3] as Y, U, V [..., 3], not rounded."""
    red, blue = colours.luma
    parts = image[..., ::-1].astype(np.float32) / 255
    brightness = parts @ np.array([red, 1 - red - blue, blue], np.float32)
    black, bright, deep = (0, 255, 255) if colours.full_range else (16, 219, 224)
    yuv = np.empty(image.shape, np.float32)
    yuv[..., 0] = black + bright * brightness
    yuv[..., 1] = 128 + deep * (parts[..., 2] - brightness) / (2 * (1 - blue))
    yuv[..., 2] = 128 + deep * (parts[..., 0] - brightness) / (2 * (1 - red))
    return yuv


@lru_cache(maxsize=16)
def shades(palette: tuple[Color, ...], colours: Colours) -> tuple[Shade, ...]:
    """A palette of BGR in the colours of a picture."""
    yuv = _rounded(bgr_to_yuv(np.array(palette, np.uint8), colours))
    return tuple(Shade(*row) for row in yuv.tolist())


def draw_box(planes: Planes, first: Point, last: Point, shade: Shade, line: int) -> None:
    """The outline between two corner pixels, as ``cv2.rectangle`` draws it."""
    cv2.rectangle(planes.y, first, last, shade.y, line)
    (x1, y1), (x2, y2), reach = first, last, _reach(line)
    _tint(planes, x1 - reach, y1 - reach, x2 + reach, y1 + reach, shade)
    _tint(planes, x1 - reach, y2 - reach, x2 + reach, y2 + reach, shade)
    _tint(planes, x1 - reach, y1 - reach, x1 + reach, y2 + reach, shade)
    _tint(planes, x2 - reach, y1 - reach, x2 + reach, y2 + reach, shade)


def draw_arm(planes: Planes, at: Point, end: Point, shade: Shade, line: int) -> None:
    """A line along a row or a column, as ``cv2.line`` draws it."""
    cv2.line(planes.y, at, end, shade.y, line)
    reach = _reach(line)
    left, right = sorted((at[0], end[0]))
    top, bottom = sorted((at[1], end[1]))
    _tint(planes, left - reach, top - reach, right + reach, bottom + reach, shade)


def draw_dot(planes: Planes, middle: Point, radius: int, shade: Shade) -> None:
    """A filled circle with smooth edges."""
    cv2.circle(planes.y, middle, radius, shade.y, cv2.FILLED, cv2.LINE_AA)
    # In a plane of half the size the middle of pixel x lies at (x + 0.5) / 2 - 0.5.
    x, y = (round((2 * one - 1) / 4 * (1 << SHIFT)) for one in middle)
    half = round((radius + 0.5) / 2 * (1 << SHIFT))
    for plane, colour in ((planes.u, shade.u), (planes.v, shade.v)):
        cv2.circle(plane, (x, y), half, colour, cv2.FILLED, cv2.LINE_AA, SHIFT)


def draw_label(planes: Planes, label: Label, x: int, y: int) -> None:
    """Copies a label to ``x``, ``y``, cut where the picture ends."""
    drawn = planes_of_label(label, planes.colours, x % 2, y % 2)
    _copy(drawn.y, planes.y, x, y)
    _copy(drawn.u, planes.u, x // 2, y // 2)
    _copy(drawn.v, planes.v, x // 2, y // 2)


def pixelate_planes(planes: Planes, area: tuple[int, int, int, int], few: tuple[int, int]) -> None:
    """Blocks of their mean in ``area`` (left, top, right, bottom, pixels): ``few`` (columns, rows).

    Colours that reach out of it by a pixel are hidden with it.
    """
    left, top, right, bottom = area
    rows, columns = slice(top // 2, (bottom + 1) // 2), slice(left // 2, (right + 1) // 2)
    for part in (
        planes.y[top:bottom, left:right],
        planes.u[rows, columns],
        planes.v[rows, columns],
    ):
        height, width = part.shape
        size = min(few[0], width), min(few[1], height)
        small = cv2.resize(part, size, interpolation=cv2.INTER_AREA)
        part[:] = cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST)


@lru_cache(maxsize=2048)  # at 1280x720 a label has some 2 kB
def planes_of_label(label: Label, colours: Colours, odd_x: int, odd_y: int) -> LabelPlanes:
    """A label for a place whose x is odd (1) or even (0), and y."""
    yuv = bgr_to_yuv(label.picture, colours)
    # Up to whole blocks of 2x2, its border goes on: it is of one colour.
    right, bottom = (label.width + odd_x) % 2, (label.height + odd_y) % 2
    around = cv2.copyMakeBorder(yuv, odd_y, bottom, odd_x, right, cv2.BORDER_REPLICATE)
    size = around.shape[1] // 2, around.shape[0] // 2
    halved = _rounded(cv2.resize(around, size, interpolation=cv2.INTER_AREA))
    return LabelPlanes(
        np.ascontiguousarray(_rounded(yuv)[..., 0]),
        np.ascontiguousarray(halved[..., 1]),
        np.ascontiguousarray(halved[..., 2]),
    )


def _reach(line: int) -> int:
    """Pixels that a line of cv2's is wide to either side of its middle: 3 in all for 2, 5 for 3."""
    return 0 if line == 1 else (line + 1) // 2


def _tint(planes: Planes, left: int, top: int, right: int, bottom: int, shade: Shade) -> None:
    """Sets the colours of all pixels from the first to the last one, as far as they are there."""
    rows = slice(max(0, top) // 2, max(0, bottom // 2 + 1))
    columns = slice(max(0, left) // 2, max(0, right // 2 + 1))
    planes.u[rows, columns] = shade.u
    planes.v[rows, columns] = shade.v


def _copy(of: NDArray[np.uint8], to: NDArray[np.uint8], x: int, y: int) -> None:
    height, width = to.shape
    wide, high = min(of.shape[1], width - x), min(of.shape[0], height - y)
    to[y : y + high, x : x + wide] = of[:high, :wide]


def _rounded(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    whole: NDArray[np.uint8] = np.rint(np.minimum(values, 255)).astype(np.uint8)
    return whole
