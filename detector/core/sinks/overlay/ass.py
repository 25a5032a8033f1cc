"""Format the boxes and labels of one picture as lines of ASS subtitles, which players draw.

A picture has one line of boxes, and usually one or two of labels. A line for each box would be
simpler, but VLC shows no line if there are many. Two properties of libass, which tests check, let
us use few lines:

- Drawings in one line are placed side by side. Each of ours has one colour and is as wide as the
  picture. We shift the k-th by k widths to the left, so that all overlap. A drawing that extended
  beyond the picture would move the later ones.
- An invisible drawing in front of a text determines where the text begins. With \\pbo it also
  determines the height of the text's row, whatever font the player uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from detector.core.stages.annotate import INKS, PALETTE, DrawnLayout, PlacedLabel, dashes
from detector.core.stages.labels import FONT_HEIGHT, MANY_SCRIPTS, Color
from detector.core.types import Detections

if TYPE_CHECKING:
    from detector.core.stages.font import Font

FAMILY = "sans-serif"  # without an attached font, the player uses its own
# Height of a capital at scale 1.0, in pixels. OpenCV 5's own capitals are 14 pixels high. At 16.5,
# text fits the label backgrounds even in a wide font (DejaVu Sans).
CAPITAL = 16.5 if MANY_SCRIPTS else FONT_HEIGHT
# ASS's Fontsize is ascent plus descent. In most fonts that is 1.2 em, and a capital is 0.72 em.
CAPITAL_OF_EM = 0.72
PER_CAPITAL = 1.2 / CAPITAL_OF_EM
BELOW = 0.34  # space below the baseline, in Fontsizes; no font has a larger descent
ROW = 1.3  # least distance between the baselines of labels in one line, in Fontsizes
BOXES, LABELS = "Boxes", "Labels"  # names of the styles
LONGEST_NAME = 200  # characters of a class name

_UNSAFE = str.maketrans({"{": "(", "}": ")", "\\": "/", "\n": " ", "\r": " ", "\t": " "})


def header(width: int, height: int, family: str, style: str, size: float) -> str:
    """Return a header with the picture's size and a font's ``family``, ``style`` and ``size``."""
    bold, italic = (-int(word in style.lower()) for word in ("bold", "italic"))
    family = escape(family).replace(",", " ").strip() or FAMILY
    colors, rest = "&H00FFFFFF,&H00FFFFFF,&H00000000,&HFF000000", "100,100,0,0,1,0,0,7,0,0,0,1"
    look = f"{colors},{bold},{italic},0,0,{rest}"
    return f"""[Script Info]
; Boxes and labels of detect-video
ScriptType: v4.00+
PlayResX: {width}
PlayResY: {height}
LayoutResX: {width}
LayoutResY: {height}
WrapStyle: 2
ScaledBorderAndShadow: yes
YCbCr Matrix: None

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, \
Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, \
Alignment, MarginL, MarginR, MarginV, Encoding
Style: {BOXES},{family},{size:g},{look}
Style: {LABELS},{family},{size:g},{look}

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


@lru_cache(maxsize=1024)  # labels repeat: a class name has at most a hundred different scores
def escape(text: str) -> str:
    """Replace the characters that would start an ASS override or end the line."""
    text = text[:LONGEST_NAME].translate(_UNSAFE)
    return "".join(char if char.isprintable() else " " for char in text)


def boxes_text(layout: DrawnLayout, width: int, height: int) -> str:
    """Return the text that draws outlines, dots and label backgrounds; "" if there are none."""
    ascending = range(len(layout.boxes) - 1, -1, -1)  # draw the box with the highest score last
    groups = [
        [(layout.shades[i], _make_shape(layout, i)) for i in ascending],
        [
            (shade, (*_list_corners(*across), *_list_corners(*down)))
            for shade, (across, down) in layout.corners
        ],
        [(placed.shade, _make_background(placed, width, height)) for placed in layout.labels],
        [(layout.shades[i], _make_dot(layout, i)) for i in layout.dots],
    ]
    shapes = [drawing for group in groups for drawing in _merge_colors(group)]
    if not shapes:
        return ""
    # For speed, numpy clips all points at once, and all points of a colour are formatted at once.
    points = np.array([at for _, points in shapes for at in points], np.int64).reshape(-1, 2)
    lefts = np.repeat(np.arange(len(shapes)) * width, [len(points) // 2 for _, points in shapes])
    # Clip to the picture, since a wider drawing would move all later ones to the right.
    points[:, 0] = points[:, 0].clip(0, width) - lefts
    points[:, 1] = points[:, 1].clip(0, height)
    numbers, parts, at = points.ravel().tolist(), [], 0
    for k, (shade, own) in enumerate(shapes):
        drawn = POLYGON * (len(own) // 8) % tuple(numbers[at : at + len(own)])
        at += len(own)
        space = f"m {-k * width} 0 m {width - k * width} {height}"
        parts.append(f"{{\\1c{_format_color(PALETTE[shade])}\\p1}}{space}{drawn}{{\\p0}}")
    return "{\\pos(0,0)}" + "".join(parts)


Points = tuple[int, ...]  # x, y of four corners for each rectangle
POLYGON = " m %d %d l %d %d %d %d %d %d"


def _merge_colors(shapes: Sequence[tuple[int, Points]]) -> list[tuple[int, list[int]]]:
    """Return one drawing per colour, ordered by the last shape of each colour."""
    merged: dict[int, list[int]] = {}
    for shade, points in shapes:
        own = merged.pop(shade, [])
        own += points
        merged[shade] = own
    return list(merged.items())


def _make_shape(layout: DrawnLayout, i: int) -> Points:
    if i not in layout.dashed:
        return _make_outline(layout.boxes[i], layout.line)
    parts = dashes(layout.boxes[i], layout.line)
    return tuple(at for part in parts for at in _list_corners(*part))


def _make_outline(box: Sequence[int], line: int) -> Points:
    """Return a box's outer edge and reversed inner edge. Lines have odd widths, as in OpenCV."""
    x1, y1 = box[0], box[1]
    x2, y2 = max(x1 + 1, box[2]), max(y1 + 1, box[3])
    half = 0 if line == 1 else (line + 1) // 2
    outer = _list_corners(x1 - half, y1 - half, x2 + half, y2 + half)
    left, top, right, bottom = x1 + half + 1, y1 + half + 1, x2 - half - 1, y2 - half - 1
    if right <= left or bottom <= top:
        return outer
    return (*outer, left, bottom, right, bottom, right, top, left, top)


def _list_corners(x1: int, y1: int, x2: int, y2: int) -> Points:
    return x1, y1, x2, y1, x2, y2, x1, y2


def _make_background(placed: PlacedLabel, width: int, height: int) -> Points:
    right = min(width, placed.x + placed.label.width)
    bottom = min(height, placed.y + placed.label.height)
    return _list_corners(placed.x, placed.y, right, bottom)


def _make_dot(layout: DrawnLayout, i: int) -> Points:
    side = 2 * layout.line + 3
    x, y = layout.boxes[i][:2]
    return _list_corners(x, y, x + side, y + side)


@lru_cache(maxsize=256)
def _format_color(bgr: Color) -> str:
    return "&H{:02X}{:02X}{:02X}&".format(*bgr)


def label_texts(layout: DrawnLayout, detections: Detections, per_scale: float) -> Iterator[str]:
    """Yield lines of labels that are at least a row apart. ``per_scale``: Fontsize at scale 1."""
    row_height = ROW * per_scale * max((placed.scale for placed in layout.labels), default=0)
    lines: list[list[tuple[int, PlacedLabel]]] = []
    for base, placed in sorted(
        ((_compute_baseline(placed, per_scale), placed) for placed in layout.labels),
        key=lambda pair: pair[0],
    ):
        for line in lines:
            if base - line[-1][0] >= row_height:
                line.append((base, placed))
                break
        else:
            lines.append([(base, placed)])
    for line in lines:
        yield _format_labels(line, detections, per_scale, row_height)


def font_size(font: Font | None) -> float:
    """Return the Fontsize that makes letters as high as in labels drawn at scale 1.0."""
    if font is None:
        return CAPITAL * PER_CAPITAL
    from detector.core.stages.font import EM

    return EM * CAPITAL_OF_EM * PER_CAPITAL


def _compute_baseline(placed: PlacedLabel, per_scale: float) -> int:
    capital = placed.scale * per_scale / PER_CAPITAL
    return int(placed.y + round((placed.label.height + capital) / 2))


def _format_labels(
    line: Sequence[tuple[int, PlacedLabel]],
    detections: Detections,
    per_scale: float,
    row_height: float,
) -> str:
    below = round(BELOW / ROW * row_height)
    # If the first row does not fit below the picture's top, the line begins above the picture.
    above = max(0, round(row_height) - line[0][0] - below)
    texts, end, look = [], 0, ""
    for base, placed in line:
        bottom = base + below + above
        left = placed.x + max(1, round(FONT_HEIGHT * placed.scale / 5))  # as in drawn pictures
        fill, ink = _format_color(PALETTE[placed.shade]), _format_color(INKS[placed.shade])
        before, look = look, f"\\fs{placed.scale * per_scale:.1f}\\1c{ink}\\3c{fill}"
        texts.append(
            f"{{\\alpha&HFF&\\p1}}m 0 0 m {left} {bottom - end}"
            f"{{\\p0\\alpha&H00&{'' if look == before else look}}}{_make_text(placed, detections)}"
        )
        end = bottom
    return f"{{\\pos(0,{-above})\\pbo{below}\\bord1}}" + "\\N".join(texts)


def _make_text(placed: PlacedLabel, detections: Detections) -> str:
    """Return a label with the full class name: a player's font may have letters that ours lacks."""
    text = placed.text
    if text and placed.number is not None:
        text = detections.name(placed.number)
    return escape(f"{text} {placed.score}".strip())
