"""Draw boxes, labels and blocks into the planes of a YUV 4:2:0 picture.

Brightness is drawn pixel by pixel, as in BGR. A colour applies to 2x2 pixels: we draw it if any of
the four pixels is drawn, so that a line one pixel wide keeps its colour at odd positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.stages.labels import Color, Label, blend
from detector.core.types import Colours, Image, Planes

Point = tuple[int, int]  # x, y, pixels
Rect = tuple[int, int, int, int]  # x1, y1, x2, y2, pixels; x2 and y2 are exclusive
SHIFT = 2  # fractional bits of coordinates


class Shade(NamedTuple):
    y: int
    u: int
    v: int


@lru_cache(maxsize=16)
def bgr_to_yuv(colours: Colours) -> NDArray[np.float32]:
    """Return the matrix [3, 4] that converts (B, G, R, 1) to (Y, U, V). B, G, R: 0 to 255."""
    red, blue = colours.luma
    black, bright, deep = (0, 1.0, 1.0) if colours.full_range else (16, 219 / 255, 224 / 255)
    brightness = np.array([blue, 1 - red - blue, red])
    matrix = np.array(
        [
            bright * brightness,
            deep * (np.array([1, 0, 0]) - brightness) / (2 * (1 - blue)),
            deep * (np.array([0, 0, 1]) - brightness) / (2 * (1 - red)),
        ]
    )
    return np.column_stack([matrix, (black, 128, 128)]).astype(np.float32)


def planes_of(image: Image, colours: Colours) -> Planes:
    """Convert a BGR picture of even height and width to planes in these colours."""
    y, u, v = cv2.split(cv2.transform(image, bgr_to_yuv(colours)))
    half = y.shape[1] // 2, y.shape[0] // 2
    u, v = (cv2.resize(plane, half, interpolation=cv2.INTER_AREA) for plane in (u, v))
    return Planes(y, u, v, colours, lambda _: image)


@lru_cache(maxsize=16)
def shades(palette: tuple[Color, ...], colours: Colours) -> tuple[Shade, ...]:
    yuv = cv2.transform(np.array([palette], np.uint8), bgr_to_yuv(colours))[0]
    return tuple(Shade(*row) for row in yuv.tolist())


def draw_boxes(
    planes: Planes, corners: Sequence[tuple[Point, Point]], colours: Sequence[Shade], line: int
) -> None:
    """Draw the outlines in order, each between two corner pixels. Lines are as wide as those of
    ``cv2.rectangle``, but corners are square."""
    reach = _reach(line)
    for ((x1, y1), (x2, y2)), shade in zip(corners, colours, strict=True):
        left, top, right, bottom = x1 - reach, y1 - reach, x2 + reach, y2 + reach
        _draw_ring(planes.y, left, top, right + 1, bottom + 1, 2 * reach + 1, shade.y)
        half = left // 2, top // 2, right // 2 + 1, bottom // 2 + 1
        _draw_ring(planes.u, *half, reach + 1, shade.u)
        _draw_ring(planes.v, *half, reach + 1, shade.v)


def _draw_ring(
    plane: NDArray[np.uint8], x1: int, y1: int, x2: int, y2: int, wide: int, colour: int
) -> None:
    """Fill a rectangle's outline, ``wide`` pixels inwards, clipped to the picture. Slices are
    faster than ``cv2.rectangle``."""
    left, top = max(0, x1), max(0, y1)
    part = plane[top : max(0, y2), left : max(0, x2)]
    after, below = max(0, x1 + wide - left), max(0, y1 + wide - top)
    before, above = max(0, x2 - wide - left), max(0, y2 - wide - top)
    part[:below] = colour
    part[above:] = colour
    part[below:above, :after] = colour
    part[below:above, before:] = colour


def fill_areas(planes: Planes, areas: Sequence[Rect], colours: Sequence[Shade]) -> None:
    if not areas:
        return
    # Assigning to a slice, although we must clip it first, takes half as long as cv2.rectangle.
    height, width = planes.y.shape
    bounds = np.array(areas).clip(0, (width, height, width, height))
    halves = bounds // 2
    halves[:, 2:] = (bounds[:, 2:] + 1) // 2
    y, u, v = planes.y, planes.u, planes.v
    for (x1, y1, x2, y2), half, shade in zip(
        bounds.tolist(), halves.tolist(), colours, strict=True
    ):
        y[y1:y2, x1:x2] = shade.y
        rows, columns = slice(half[1], half[3]), slice(half[0], half[2])
        u[rows, columns] = shade.u
        v[rows, columns] = shade.v


def draw_dot(planes: Planes, middle: Point, radius: int, shade: Shade) -> None:
    """Draw a filled circle with smooth edges."""
    cv2.circle(planes.y, middle, radius, shade.y, cv2.FILLED, cv2.LINE_AA)
    # In a plane of half the size the centre of pixel x is at (x + 0.5) / 2 - 0.5.
    x, y = (round((2 * coordinate - 1) / 4 * (1 << SHIFT)) for coordinate in middle)
    half = round((radius + 0.5) / 2 * (1 << SHIFT))
    for plane, colour in ((planes.u, shade.u), (planes.v, shade.v)):
        cv2.circle(plane, (x, y), half, colour, cv2.FILLED, cv2.LINE_AA, SHIFT)


def draw_trails(
    planes: Planes, trails: Sequence[NDArray[np.float32]], colours: Sequence[Shade], line: int
) -> None:
    """Draw a line through each trail's points [n, 2], pixels. Only brightness is smoothed."""
    for points, shade in zip(simplify(trails, line, SHIFT), colours, strict=False):
        cv2.polylines(planes.y, [points], False, shade.y, line, cv2.LINE_AA, SHIFT)
        half = [(points - (1 << SHIFT - 1)) >> 1]
        for plane, colour in ((planes.u, shade.u), (planes.v, shade.v)):
            cv2.polylines(plane, half, False, colour, (line + 1) // 2, cv2.LINE_8, SHIFT)


def simplify(
    trails: Sequence[NDArray[np.float32]], line: int, shift: int = 0
) -> Iterator[NDArray[np.int32]]:
    """Yield each trail's points in 1 / 2 ** ``shift`` pixels. Omit points if this moves the line by
    at most an eighth of its width."""
    if not trails:
        return
    points = np.rint(np.concatenate(trails) * (1 << shift)).astype(np.int32)
    start = 0
    for trail in trails:
        end = start + len(trail)
        few = cv2.approxPolyDP(points[start:end], line * (1 << shift) / 8, False)
        # OpenCV drops the last point of a curve that ends where it began.
        is_closed = (points[start] == points[end - 1]).all()
        yield np.concatenate([few, few[:1]]) if is_closed else few
        start = end


def draw_label(planes: Planes, label: Label, x: int, y: int) -> None:
    """Draw a label at ``x``, ``y``, clipped to the picture."""
    height, width = planes.y.shape
    high, wide = min(label.height, height - y), min(label.width, width - x)
    rows, columns = slice(y // 2, (y + high + 1) // 2), slice(x // 2, (x + wide + 1) // 2)
    halved = _halve(label, x % 2, y % 2)[: rows.stop - rows.start, : columns.stop - columns.start]
    blends = _blend_planes(label.fill, label.ink, planes.colours)
    cv2.LUT(label.coverage[:high, :wide], blends[0], planes.y[y : y + high, x : x + wide])
    cv2.LUT(halved, blends[1], planes.u[rows, columns])
    cv2.LUT(halved, blends[2], planes.v[rows, columns])


def pixelate_planes(planes: Planes, area: Rect, few: tuple[int, int]) -> None:
    """Divide ``area`` into blocks, and fill each with its mean colour. ``few``: columns and rows of
    blocks. A U or V value that also covers pixels next to the area is hidden, too."""
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


@lru_cache(maxsize=512)
def _halve(label: Label, odd_x: int, odd_y: int) -> NDArray[np.uint8]:
    """Return a label's coverage of blocks of 2x2 pixels, which begin at even pixels. ``odd_x`` and
    ``odd_y``: 1 if the label begins at an odd pixel, in the middle of a block."""
    # Extend the label's border, which has one colour, to whole 2x2 blocks.
    right, bottom = (label.width + odd_x) % 2, (label.height + odd_y) % 2
    sides = odd_y, bottom, odd_x, right
    extended = cv2.copyMakeBorder(label.coverage, *sides, cv2.BORDER_REPLICATE)
    size = extended.shape[1] // 2, extended.shape[0] // 2
    halved: NDArray[np.uint8] = cv2.resize(extended, size, interpolation=cv2.INTER_AREA)
    return halved


@lru_cache(maxsize=256)
def _blend_planes(fill: Color, ink: Color, colours: Colours) -> NDArray[np.uint8]:
    """Return Y, U, V for each coverage: u8 [3, 256]."""
    return np.ascontiguousarray(blend(*shades((fill, ink), colours)).T)


def _reach(line: int) -> int:
    """Return how many pixels a cv2 line extends to either side. cv2 draws width 2 as 3, 3 as 5."""
    return 0 if line == 1 else (line + 1) // 2
