"""Boxes and labels, drawn into the picture itself, and objects that are made unrecognisable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np

from detector.stages.labels import CORNERS, Color, Label, Places, Position, drawable, render
from detector.types import Detections, Image

if TYPE_CHECKING:
    from detector.stages.font import Font

# Bright, well apart, and readable under black or white text (BGR). Class 0 is the orange-red of a
# warning, since the first class is nearly always the person.
_HAND_PICKED = (
    (56, 87, 255),
    (219, 152, 52),
    (113, 204, 46),
    (18, 196, 241),
    (182, 89, 155),
    (156, 188, 26),
    (34, 126, 230),
    (180, 105, 255),
    (241, 240, 60),
    (60, 220, 190),
    (230, 80, 90),
    (140, 160, 250),
)


def _palette(n: int) -> tuple[Color, ...]:
    """n distinct colours, BGR: the hand-picked ones, then hues a golden angle apart at three
    lightnesses.
    """
    i = np.arange(n - len(_HAND_PICKED))
    hsv = np.stack([i * 67 % 180, 130 + i % 2 * 90, 255 - i % 3 * 45], axis=1).astype(
        np.uint8
    )  # OpenCV hue: 0..179
    bgr = cv2.cvtColor(hsv[None], cv2.COLOR_HSV2BGR)[0]
    return _HAND_PICKED + tuple((int(b), int(g), int(r)) for b, g, r in bgr)


def _ink(color: Color) -> Color:
    """White text on a dark colour, black on a light one: a contrast of 3 : 1 at least, as WCAG 2
    counts it.
    """
    blue, green, red = ((channel / 255) ** 2.2 for channel in color)
    return (255, 255, 255) if 0.0722 * blue + 0.7152 * green + 0.2126 * red < 0.29 else (0, 0, 0)


PALETTE = _palette(80)  # COCO's classes; a higher class id begins again
INKS = tuple(_ink(color) for color in PALETTE)


YELLOW = 3  # of the palette: what a remark stands on
FEW = 12  # boxes; with more, text is smaller and labels show their corner
BLOCKS = 6  # of a pixelated object along its shorter side
SMALLEST_BLOCK = 8  # pixels: below it letters and faces stay readable


@dataclass(frozen=True, slots=True)
class Style:
    """How boxes and labels look.

    ``line_width``: pixels, None: from the picture's size. ``font_scale``: 1.0 is the size chosen
    for the picture. ``blurred``: ids of the classes whose boxes are pixelated. ``remark``: a
    sentence at the bottom left of the picture, which whoever sees it must know. ``font``: of the
    labels; None: OpenCV's own.
    """

    line_width: int | None = None
    font_scale: float = 1.0
    labels: bool = True
    scores: bool = True
    blurred: frozenset[int] = frozenset()
    remark: str = ""
    font: Font | None = None


def annotate(image: Image, detections: Detections, style: Style = Style()) -> None:
    """Draws each box with its label ("person 0.91") into ``image``, u8 BGR [h, w, 3], in place.

    Objects of ``style.blurred`` are pixelated before anything is drawn. The best score's box is
    drawn last, so that it lies on top, and its label takes its place first. Labels come after all
    boxes. Line width and text grow with the picture, and text shrinks where boxes are many.
    """
    height, width = image.shape[:2]
    size = min(max((height * width) ** 0.5, 1.0), 16384.0)
    line = style.line_width or max(1, round(size / 400))  # 2 at 1280x720, 20 at 8192x8192
    if style.blurred:
        pixelate(image, detections, style.blurred)
    boxes = detections.boxes.round().astype(np.int64).tolist()
    shades = (detections.class_ids % len(PALETTE)).tolist()
    for i in reversed(range(len(boxes))):
        x1, y1, x2, y2 = boxes[i]
        # A box ends at an outer corner (x2 = width is the right edge): its last pixel is the one
        # before.
        corner = (max(x1, x2 - 1), max(y1, y2 - 1))
        cv2.rectangle(image, (x1, y1), corner, PALETTE[shades[i]], line)
    labelled = style.labels and bool(boxes)
    if not labelled and not style.remark:
        return
    places = Places(width, height, detections.boxes, line)
    # 0.64 at 1280x720: capitals of 9 pixels with OpenCV 5, of 13 with OpenCV 4
    scale = round(max(0.4, size / 1500) * style.font_scale, 3)
    if style.remark:
        remark = _render(style.remark, YELLOW, scale)
        top = max(0, height - remark.height)
        places.take(0, top, remark.width, remark.height)
        remark.draw(image, 0, top)
    if labelled:
        # In steps: text that changed its size with every box would flicker, and none of it would
        # be drawn twice.
        crowded = 1.0 if len(boxes) <= FEW else 0.87 if len(boxes) <= 24 else 0.75
        scale = round(max(0.36, scale * crowded), 3)
        placed, bare = _place_labels(places, detections, shades, scale, style)
        if len(boxes) > FEW:
            _draw_corners(image, boxes, placed, shades, line)
        for _, label, (x, y, _) in placed:
            label.draw(image, x, y)
        _draw_dots(image, places, boxes, bare, shades, line + 1)


Placed = tuple[int, Label, Position]  # number of the box


def _place_labels(
    places: Places, detections: Detections, shades: Sequence[int], scale: float, style: Style
) -> tuple[list[Placed], list[int]]:
    """Labels of all boxes, best score first; and the boxes that no label fits.

    What does not fit with its score is tried without it, then with the score alone: the colour
    tells the class.
    """
    ids = detections.class_ids.tolist()
    font = style.font
    names = [drawable(detections.name(i), class_id, font) for i, class_id in enumerate(ids)]
    nothing = [""] * len(names)
    texts = [(names, nothing)]
    if style.scores:
        shares = [f"{score:.2f}" for score in detections.scores.tolist()]
        texts = [(names, shares), (names, nothing), (nothing, shares)]
    bare = list(range(len(names)))
    placed: list[Placed] = []
    for level, ends in texts:
        labels = [_render(level[i], shades[i], scale, ends[i], font) for i in bare]
        left = []
        for i, label, at in zip(bare, labels, places.find(bare, labels), strict=True):
            if at is None:
                left.append(i)
            else:
                placed.append((i, label, at))
        bare = left
        if not bare:
            break
    return placed, bare


def _draw_corners(
    image: Image,
    boxes: Sequence[Sequence[int]],
    placed: Sequence[Placed],
    shades: Sequence[int],
    line: int,
) -> None:
    """A thick corner where each label hangs on its box. In a crowd boxes of one colour cross, and
    the arms show to which of them a label belongs, and on which side of it the box lies.
    """
    for i, label, (_, _, place) in reversed(placed):
        x1, y1, x2, y2 = boxes[i]
        right, bottom = CORNERS[place]
        x, y = (x2 - 1 if right else x1), (y2 - 1 if bottom else y1)
        arm = min(label.height, (x2 - x1) // 2, (y2 - y1) // 2)
        ends = ((x - arm if right else x + arm, y), (x, y - arm if bottom else y + arm))
        for end in ends:
            cv2.line(image, (x, y), end, PALETTE[shades[i]], 2 * line + 1)


def _draw_dots(
    image: Image,
    places: Places,
    boxes: Sequence[Sequence[int]],
    bare: Sequence[int],
    shades: Sequence[int],
    radius: int,
) -> None:
    """A dot in the top left corner of each box without a label, where the box has room for it."""
    side = 2 * radius + 1
    for i in bare:
        x, y, x2, y2 = boxes[i]
        if min(x2 - x, y2 - y) >= 3 * side and places.take(x, y, side, side):
            middle = (x + radius, y + radius)
            cv2.circle(image, middle, radius, PALETTE[shades[i]], cv2.FILLED, cv2.LINE_AA)


def _render(
    text: str, shade: int, scale: float, score: str = "", font: Font | None = None
) -> Label:
    return render(text, scale, PALETTE[shade], INKS[shade], score, font)


def pixelate(image: Image, detections: Detections, class_ids: frozenset[int]) -> None:
    """Makes the objects of these classes unrecognisable: whole boxes in coarse blocks, in place.

    A block is an area's mean, so what was there cannot be computed back. A box is at most
    ``BLOCKS`` blocks wide along its shorter side, whatever its size.
    """
    height, width = image.shape[:2]
    for (x1, y1, x2, y2), class_id in zip(
        detections.boxes.tolist(), detections.class_ids.tolist(), strict=True
    ):
        if class_id not in class_ids:
            continue
        left, top = max(0, int(np.floor(x1))), max(0, int(np.floor(y1)))
        right, bottom = min(width, int(np.ceil(x2))), min(height, int(np.ceil(y2)))
        if right <= left or bottom <= top:
            continue
        area = image[top:bottom, left:right]
        block = max(SMALLEST_BLOCK, min(area.shape[:2]) / BLOCKS)
        few = (max(1, round((right - left) / block)), max(1, round((bottom - top) / block)))
        small = cv2.resize(area, few, interpolation=cv2.INTER_AREA)
        area[:] = cv2.resize(small, (right - left, bottom - top), interpolation=cv2.INTER_NEAREST)
