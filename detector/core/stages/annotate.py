"""Draw boxes and labels into a picture, and make objects unrecognisable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.stages.labels import CORNERS, Color, Label, LabelSpace, drawable, render
from detector.core.stages.planes import (
    Rect,
    draw_boxes,
    draw_dot,
    draw_label,
    draw_trails,
    fill_areas,
    pixelate_planes,
    shades,
    simplify,
)
from detector.core.types import Detections, Image, Picture, Planes, size_of

if TYPE_CHECKING:
    from detector.core.stages.font import Font

# BGR colours that are bright, easy to tell apart, and readable below black or white text. Class 0,
# which usually means person, is orange-red.
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


def _make_palette(n: int) -> tuple[Color, ...]:
    """Return n BGR colours: hand-picked ones, then hues 134 degrees apart, in 3 lightnesses."""
    i = np.arange(n - len(_HAND_PICKED))
    hues = i * 67 % 180  # 0..179 in OpenCV
    hsv = np.stack([hues, 130 + i % 2 * 90, 255 - i % 3 * 45], axis=1).astype(np.uint8)
    bgr = cv2.cvtColor(hsv[None], cv2.COLOR_HSV2BGR)[0]
    return _HAND_PICKED + tuple((int(b), int(g), int(r)) for b, g, r in bgr)


def _choose_ink(color: Color) -> Color:
    """Return white for text on a dark colour, else black: at least 3 : 1 contrast (WCAG 2)."""
    blue, green, red = ((channel / 255) ** 2.2 for channel in color)
    return (255, 255, 255) if 0.0722 * blue + 0.7152 * green + 0.2126 * red < 0.29 else (0, 0, 0)


PALETTE = _make_palette(80)  # one per class of COCO; higher class ids reuse them
INKS = tuple(_choose_ink(color) for color in PALETTE)

PEOPLE = {"person", "people", "pedestrian"}  # names in COCO, VisDrone, MOT, default model
YELLOW = 3  # index in the palette: the background of a remark
FEW = 12  # boxes; with more, text is smaller, and ambiguous labels get a thick corner
BLOCKS = 6  # limit on blocks along the shorter side of a pixelated object
DASH = 4  # length of a dash, in line widths
SMALLEST_BLOCK = 8  # pixels: smaller blocks leave letters and faces readable


@dataclass(frozen=True, slots=True)
class Style:
    """How boxes and labels look.

    ``line_width``: pixels; None: the picture's size decides. ``font_scale``: 1.0 is the size chosen
    for the picture. ``blurred``: ids of classes whose boxes are pixelated. ``remark``: a sentence
    to draw at the bottom left. ``font``: draws the labels; None: OpenCV's own font.
    """

    line_width: int | None = None
    font_scale: float = 1.0
    labels: bool = True
    scores: bool = True
    blurred: frozenset[int] = frozenset()
    remark: str = ""
    font: Font | None = None


class PlacedLabel(NamedTuple):  # a frozen dataclass takes four times as long to create
    """A label and its top left corner, pixels. ``number``: of the detection; None for a remark."""

    number: int | None
    text: str  # the class name, or "" if only the score fits
    score: str
    shade: int  # index in PALETTE
    scale: float  # scale of the text
    label: Label
    x: int
    y: int


class Corner(NamedTuple):
    """The two arms that thicken a corner of a box. Each is x1, y1, x2, y2 in whole pixels, with x2
    and y2 past the last pixel. The arms may exceed the picture."""

    shade: int  # index in PALETTE
    arms: tuple[Rect, Rect]


@dataclass(frozen=True, slots=True)
class DrawnLayout:
    """The positions of everything that ``annotate`` or an overlay draws in one picture.

    ``line``: width in pixels. ``boxes``: x1, y1, x2, y2 of each, best score first. ``shades``:
    indexes in PALETTE. ``corners``: in drawing order. ``dots``: indexes of boxes with a dot instead
    of a label. ``dashed``: indexes of predicted boxes, which were not detected.
    """

    line: int
    boxes: list[list[int]]
    shades: list[int]
    labels: list[PlacedLabel]
    corners: list[Corner]
    dots: list[int]
    dashed: frozenset[int] = frozenset()
    trails: tuple[NDArray[np.float32], ...] = ()  # trail of each box: points [n, 2]


def lay_out(width: int, height: int, detections: Detections, style: Style) -> DrawnLayout:
    """Place boxes and labels in a picture of this size, the best score's label first. Line width
    and text grow with the picture, and text shrinks if there are many boxes."""
    side = _mean_side(width, height)
    line = style.line_width or max(1, round(side / 400))  # 2 at 1280x720, 20 at 8192x8192
    if not len(detections.boxes) and not style.remark:
        return DrawnLayout(line, [], [], [], [], [])
    boxes = detections.boxes.round().astype(np.int64).tolist()
    shades = (_choose_colors(detections) % len(PALETTE)).tolist()
    coasting = detections.coasting
    dashed = frozenset(() if coasting is None else np.flatnonzero(coasting).tolist())
    layout = DrawnLayout(line, boxes, shades, [], [], [], dashed, detections.trails)
    labelled = style.labels and bool(boxes)
    if not labelled and not style.remark:
        return layout
    places = LabelSpace(width, height, detections.boxes, line, _find_people(detections))
    scale = _text_scale(width, height, style)
    if style.remark:
        remark = render(style.remark, scale, PALETTE[YELLOW], INKS[YELLOW])
        top = max(0, height - remark.height)
        places.take(0, top, remark.width, remark.height)
        layout.labels.append(PlacedLabel(None, style.remark, "", YELLOW, scale, remark, 0, top))
    if labelled:
        # Three sizes: if each added box changed the size, text would flicker and miss the cache.
        crowded = 1.0 if len(boxes) <= FEW else 0.87 if len(boxes) <= 24 else 0.75
        scale = round(max(0.36, scale * crowded), 3)
        unlabelled = _place_labels(layout, places, detections, scale, style)
        layout.dots.extend(_place_dots(places, boxes, unlabelled, line + 1))
    return layout


def _mean_side(width: int, height: int) -> float:
    return min(max(math.sqrt(height * width), 1.0), 16384.0)


def _text_scale(width: int, height: int, style: Style) -> float:
    """Return the scale. At 1280x720 it is 0.64: capitals are 9 pixels high (OpenCV 4: 13)."""
    return round(max(0.4, _mean_side(width, height) / 1500) * style.font_scale, 3)


def _find_people(detections: Detections) -> list[int]:
    people = _classes_of_people(detections.names)
    return [i for i, class_id in enumerate(detections.class_ids.tolist()) if class_id in people]


@lru_cache(maxsize=16)
def _classes_of_people(names: tuple[str, ...]) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(names) if name.lower() in PEOPLE)


def _choose_colors(detections: Detections) -> NDArray[np.int64]:
    """Return the number of each object's colour, [M]: its track id, or else its class id."""
    if detections.track_ids is None:
        return detections.class_ids
    tracked = detections.track_ids >= 0
    return np.where(tracked, detections.track_ids, detections.class_ids)


def annotate(picture: Picture, detections: Detections, style: Style = Style()) -> None:
    """Draw each box with its label ("person 0.91") in place, into ``picture`` (u8 BGR [h, w, 3], or
    planes of YUV). Objects of ``style.blurred`` are pixelated first. The box with the best score is
    drawn last, on top; labels come after all boxes."""
    height, width = size_of(picture)
    if style.blurred:
        pixelate(picture, detections, style.blurred)
    layout = lay_out(width, height, detections.shown, style)
    if detections.scene is not None:
        from detector.core.stages.outlines import draw_outlines

        scale = _text_scale(width, height, style)
        draw_outlines(picture, detections.scene.outlines, layout.line, scale, style.font)
    if isinstance(picture, Planes):
        _draw_in_planes(picture, layout)
    else:
        _draw_in_bgr(picture, layout)


def _draw_in_bgr(image: Image, layout: DrawnLayout) -> None:
    trails = simplify(layout.trails, layout.line)
    for points, shade in zip(trails, layout.shades, strict=False):
        cv2.polylines(image, [points], False, PALETTE[shade], layout.line, cv2.LINE_AA)
    for i in reversed(range(len(layout.boxes))):
        if i in layout.dashed:
            for x1, y1, x2, y2 in dashes(layout.boxes[i], layout.line):
                cv2.rectangle(
                    image, (x1, y1), (x2 - 1, y2 - 1), PALETTE[layout.shades[i]], cv2.FILLED
                )
            continue
        corner, opposite = _corners_of(layout.boxes[i])
        cv2.rectangle(image, corner, opposite, PALETTE[layout.shades[i]], layout.line)
    for shade, arms in layout.corners:
        for x1, y1, x2, y2 in arms:
            cv2.rectangle(image, (x1, y1), (x2 - 1, y2 - 1), PALETTE[shade], cv2.FILLED)
    for placed in layout.labels:
        placed.label.draw(image, placed.x, placed.y)
    radius = layout.line + 1
    for i in layout.dots:
        color = PALETTE[layout.shades[i]]
        middle = _middle_of_dot(layout.boxes[i], radius)
        cv2.circle(image, middle, radius, color, cv2.FILLED, cv2.LINE_AA)


def _draw_in_planes(planes: Planes, layout: DrawnLayout) -> None:
    """Draw the same as ``_draw_in_bgr``, except that dashed boxes come after the others."""
    palette = shades(PALETTE, planes.colours)
    draw_trails(planes, layout.trails, [palette[shade] for shade in layout.shades], layout.line)
    order = [i for i in reversed(range(len(layout.boxes))) if i not in layout.dashed]
    corners = [_corners_of(layout.boxes[i]) for i in order]
    draw_boxes(planes, corners, [palette[layout.shades[i]] for i in order], layout.line)
    for i in sorted(layout.dashed, reverse=True):
        parts = dashes(layout.boxes[i], layout.line)
        fill_areas(planes, parts, [palette[layout.shades[i]]] * len(parts))
    areas = [arm for corner in layout.corners for arm in corner.arms]
    fill_areas(planes, areas, [palette[corner.shade] for corner in layout.corners for _ in (0, 1)])
    for placed in layout.labels:
        draw_label(planes, placed.label, placed.x, placed.y)
    radius = layout.line + 1
    for i in layout.dots:
        middle = _middle_of_dot(layout.boxes[i], radius)
        draw_dot(planes, middle, radius, palette[layout.shades[i]])


def _corners_of(box: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the first and the last pixel of a box. x2 and y2 are past the last pixel."""
    x1, y1, x2, y2 = box
    return (x1, y1), (max(x1, x2 - 1), max(y1, y2 - 1))


def dashes(box: Sequence[int], line: int) -> list[Rect]:
    """Return the outline of a box in dashes, as wide as other outlines. Each side begins and ends
    with a dash. The dashes may exceed the picture."""
    (x1, y1), (right, bottom) = _corners_of(box)
    before, after = line // 2, line // 2 + 1  # as far as cv2's outlines extend
    across = list(_split_side(x1 - before, right + after, line))
    down = list(_split_side(y1 - before, bottom + after, line))
    rows = [(a, y - before, b, y + after) for y in (y1, bottom) for a, b in across]
    return rows + [(x - before, a, x + after, b) for x in (x1, right) for a, b in down]


def _split_side(start: int, end: int, line: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each dash. Dashes and gaps are about ``DASH`` line widths long."""
    parts = max(1, round((end - start) / (DASH * line))) // 2 * 2 + 1
    at = [start + round((end - start) * i / parts) for i in range(parts + 1)]
    return ((at[i], at[i + 1]) for i in range(0, parts, 2))


def _middle_of_dot(box: Sequence[int], radius: int) -> tuple[int, int]:
    return box[0] + radius, box[1] + radius


def _place_labels(
    layout: DrawnLayout, places: LabelSpace, detections: Detections, scale: float, style: Style
) -> list[int]:
    """Add the labels of all boxes, best score first, and corners at ambiguous labels. Return the
    boxes where neither the name alone nor the score alone fits."""
    ids, shades, boxes = detections.class_ids.tolist(), layout.shades, layout.boxes
    font, crowded = style.font, len(boxes) > FEW
    first = {class_id: i for i, class_id in reversed(list(enumerate(ids)))}
    classes = {id: drawable(detections.name(i), id, font) for id, i in first.items()}
    tracks = detections.track_list()
    names = [
        classes[class_id] if track is None else f"{classes[class_id]} {track}"
        for class_id, track in zip(ids, tracks, strict=True)
    ]
    nothing = [""] * len(names)
    forms = [(names, nothing)]  # texts of all labels; the longest form first
    if style.scores:
        scores = [f"{score:.2f}" for score in detections.scores.tolist()]
        forms = [(names, scores), (names, nothing), (nothing, scores)]
    unplaced = list(range(len(names)))
    placed: list[tuple[int, Label, int]] = []  # box, label, index in PLACES
    for starts, ends in forms:
        labels = [
            render(starts[i], scale, PALETTE[shades[i]], INKS[shades[i]], ends[i], font)
            for i in unplaced
        ]
        positions = places.find(unplaced, labels)
        for i, label, position in zip(unplaced, labels, positions, strict=True):
            if position is not None:
                x, y, place = position
                layout.labels.append(
                    PlacedLabel(i, starts[i], ends[i], shades[i], scale, label, x, y)
                )
                placed.append((i, label, place))
        unplaced = [i for i, at in zip(unplaced, positions, strict=True) if at is None]
        if not unplaced:
            break
    if crowded and placed and len(set(shades)) < len(shades):
        ambiguous = _find_ambiguous(layout)
        layout.corners.extend(
            _make_corner(boxes[i], label, place, shades[i], layout.line)
            for (i, label, place), needed in reversed([*zip(placed, ambiguous, strict=True)])
            if needed
        )
    return unplaced


def _find_ambiguous(layout: DrawnLayout) -> list[bool]:
    """For each box's label, return whether it touches the outline of another box of its colour. A
    label wholly inside or outside of other boxes is unambiguous."""
    placed = [label for label in layout.labels if label.number is not None]
    own = np.array([label.number for label in placed])
    at = np.array([(p.x, p.y, p.x + p.label.width, p.y + p.label.height) for p in placed])
    left, top, right, bottom = at.T[..., None]
    x1, y1, x2, y2 = np.array(layout.boxes).T
    shades = np.array(layout.shades)
    mistaken = shades[own][:, None] == shades
    mistaken[np.arange(len(own)), own] = False
    near = layout.line  # an outline extends less than this to either side
    mistaken &= (left <= x2 + near) & (top <= y2 + near)
    mistaken &= (right >= x1 - near) & (bottom >= y1 - near)
    inside = (left > x1 + near) & (top > y1 + near)
    inside &= (right < x2 - near) & (bottom < y2 - near)
    ambiguous: list[bool] = (mistaken & ~inside).any(axis=1).tolist()
    return ambiguous


def _make_corner(box: Sequence[int], label: Label, place: int, shade: int, line: int) -> Corner:
    """Return a thick corner where a label meets its box. If boxes of one colour overlap, its arms
    show which box the label belongs to."""
    x1, y1, x2, y2 = box
    right, bottom = CORNERS[place]
    x, y = (x2 - 1 if right else x1), (y2 - 1 if bottom else y1)
    arm, half = min(label.height, (x2 - x1) // 2, (y2 - y1) // 2), line + 1
    left, top, after, below = x - half, y - half, x + half + 1, y + half + 1
    across = (left - arm, top, after, below) if right else (left, top, after + arm, below)
    down = (left, top - arm, after, below) if bottom else (left, top, after, below + arm)
    return Corner(shade, (across, down))


def _place_dots(
    places: LabelSpace, boxes: Sequence[Sequence[int]], unlabelled: Sequence[int], radius: int
) -> Iterator[int]:
    """Yield the boxes without a label that have room for a dot in their top left corner."""
    side = 2 * radius + 1
    for i in unlabelled:
        x, y, x2, y2 = boxes[i]
        if min(x2 - x, y2 - y) >= 3 * side and places.take(x, y, side, side):
            yield i


def pixelate(picture: Picture, detections: Detections, class_ids: frozenset[int]) -> None:
    """Make the objects of these classes unrecognisable, in place and irreversibly. Each box becomes
    a grid with at most ``BLOCKS`` blocks along its shorter side. Each block has one mean colour."""
    height, width = size_of(picture)
    for (x1, y1, x2, y2), class_id in zip(
        detections.boxes.tolist(), detections.class_ids.tolist(), strict=True
    ):
        if class_id not in class_ids:
            continue
        left, top = max(0, int(np.floor(x1))), max(0, int(np.floor(y1)))
        right, bottom = min(width, int(np.ceil(x2))), min(height, int(np.ceil(y2)))
        if right <= left or bottom <= top:
            continue
        block = max(SMALLEST_BLOCK, min(right - left, bottom - top) / BLOCKS)
        few = (max(1, round((right - left) / block)), max(1, round((bottom - top) / block)))
        if isinstance(picture, Planes):
            pixelate_planes(picture, (left, top, right, bottom), few)
            continue
        area = picture[top:bottom, left:right]
        small = cv2.resize(area, few, interpolation=cv2.INTER_AREA)
        area[:] = cv2.resize(small, (right - left, bottom - top), interpolation=cv2.INTER_NEAREST)
