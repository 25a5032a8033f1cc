"""Draw lines and zones with their counts into a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import cv2

from detector.core.stages.labels import Color, drawable, render
from detector.core.stages.planes import draw_label, draw_trails, shades, simplify
from detector.core.types import Outline, Picture, Planes, size_of

if TYPE_CHECKING:
    from detector.core.stages.font import Font

FILL: Color = (60, 220, 255)  # yellow, which few objects have
INK: Color = (0, 0, 0)


def draw_outlines(
    picture: Picture, outlines: Sequence[Outline], line: int, scale: float, font: Font | None = None
) -> None:
    """Draw lines and polygons, then their texts. ``line``: width, pixels; ``scale``: text size."""
    height, width = size_of(picture)
    strokes = [stroke for outline in outlines for stroke in outline.strokes]
    if isinstance(picture, Planes):
        draw_trails(picture, strokes, shades((FILL,), picture.colours) * len(strokes), line)
    else:
        for points in simplify(strokes, line):
            cv2.polylines(picture, [points], False, FILL, line, cv2.LINE_AA)
    for number, outline in enumerate(outlines):
        label = render(drawable(outline.text, number, font), scale, FILL, INK, "", font)
        x = int(min(max(outline.x, 0), max(0, width - label.width)))
        y = int(min(max(outline.y - label.height, 0), max(0, height - label.height)))
        if isinstance(picture, Planes):
            draw_label(picture, label, x, y)
        else:
            label.draw(picture, x, y)
