"""Place labels in a picture full of boxes, and draw their text.

A label hides no other label and only small parts of objects. It hides a face only if no other place
is free. Each label tries places around its box, with less and less text, and takes the first free
one. If none is free, the box gets a dot, where a dot fits. The dot's colour shows the class.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.types import Image

if TYPE_CHECKING:
    from detector.core.stages.font import Font

FONT = cv2.FONT_HERSHEY_SIMPLEX
FONT_HEIGHT = 21.0  # pixels of a capital at scale 1.0 with OpenCV 4; with OpenCV 5, 14
MANY_SCRIPTS = int(cv2.__version__.split(".")[0]) >= 5  # OpenCV 4 has only ASCII

# A label may hide parts of objects. The hidden shares of these objects add up to at most this.
HIDDEN_SHARE = 0.08
# A label that hides a larger share of people's heads, in total, moves to a place that hides less.
HEAD_SHARE = 0.04
MANY = 24  # with more boxes, numpy is faster than Python at computing what labels hide
PAIRS_AT_ONCE = 2048  # pairs of a label and an object per step, in a buffer of 64 kB
CELLS = 320  # cells along the longer side of the grid of taken places, which takes 25 kB at most

Color = tuple[int, int, int]
Sides = tuple[float, float, float, float]  # x1, y1, x2, y2, pixels
Weighed = tuple[float, float, float, float, float]  # x1, y1, x2, y2, 1 / the box's area
Position = tuple[int, int, int]  # x, y of a label's top left corner, pixels; index in PLACES


class Label:
    """A text on a filled rectangle. ``coverage``: u8 [h, w], 255 where ink is."""

    def __init__(self, coverage: NDArray[np.uint8], fill: Color, ink: Color) -> None:
        self.coverage, self.fill, self.ink = coverage, fill, ink
        self.height, self.width = coverage.shape

    @cached_property
    def picture(self) -> Image:
        """The label as u8 BGR [h, w, 3]."""
        parts = cv2.cvtColor(self.coverage, cv2.COLOR_GRAY2BGR)
        picture: Image = cv2.LUT(parts, blend(self.fill, self.ink)[None])
        return picture

    def draw(self, image: Image, x: int, y: int) -> None:
        """Copy the label to ``x``, ``y``, clipped to the picture."""
        height, width = image.shape[:2]
        wide, high = min(self.width, width - x), min(self.height, height - y)
        image[y : y + high, x : x + wide] = self.picture[:high, :wide]


@lru_cache(maxsize=512)  # at 1280x720 a label takes some 5 kB
def render(
    text: str, scale: float, fill: Color, ink: Color, score: str = "", font: Font | None = None
) -> Label:
    """Return the label, cached because frames repeat labels. ``font``: None uses OpenCV's own."""
    pad = max(1, round(FONT_HEIGHT * scale / 5))
    if font is not None:
        return Label(_write_in_font(font, text, score, scale, pad), fill, ink)
    return Label(_write_in_opencv(f"{text} {score}".strip(), scale, pad), fill, ink)


def _write_in_opencv(text: str, scale: float, pad: int) -> NDArray[np.uint8]:
    stroke = max(1, round(scale * 1.6))
    (width, height), below = cv2.getTextSize(text, FONT, scale, stroke)
    coverage = np.zeros((height + below // 2 + 2 * pad, width + 2 * pad), np.uint8)
    cv2.putText(coverage, text, (pad, pad + height), FONT, scale, 255, stroke, cv2.LINE_AA)
    return coverage


def _write_in_font(font: Font, text: str, score: str, scale: float, pad: int) -> NDArray[np.uint8]:
    runs = font.write(tuple(part for part in (text, score) if part), scale)
    # Every label has room for a digit, so that most labels have the same height.
    inked = [font.height(scale), *(run for run in runs if run.coverage.size)]
    top = min(run.top for run in inked)
    height = max(run.top + len(run.coverage) for run in inked) - top
    width = sum(run.advance for run in runs)
    coverage = np.zeros((height + 2 * pad, width + 2 * pad), np.uint8)
    x = pad
    for run in runs:
        # In italics, letters may extend over their neighbours, but not beyond the label.
        high, wide = run.coverage.shape
        left = min(max(0, x + run.left), max(0, coverage.shape[1] - wide))
        target = coverage[pad + run.top - top :, left:][:high, :wide]
        np.maximum(target, run.coverage[:, : target.shape[1]], out=target)
        x += run.advance
    return coverage


@lru_cache(maxsize=256)
def blend(fill: Color, ink: Color) -> NDArray[np.uint8]:
    """Return the colour for each coverage, from ``fill`` to ``ink``: u8 [256, 3]."""
    share = np.arange(256, dtype=np.float32)[:, None] / 255
    ground, letters = np.array(fill, np.float32), np.array(ink, np.float32)
    return np.rint(ground + (letters - ground) * share).astype(np.uint8)


@lru_cache(maxsize=4096)
def drawable(name: str, class_id: int, font: Font | None = None) -> str:
    """Return ``name``, or "#3" for class 3 if a label cannot show the name (``reason_against``)."""
    return f"#{class_id}" if reason_against(name, font) else unicodedata.normalize("NFC", name)


def reason_against(name: str, font: Font | None = None) -> str:
    """Return why a label cannot show this name; "" if it can. "letters": the font lacks some.
    "order": letters join or run from right to left, and Pillow cannot draw that."""
    name = unicodedata.normalize("NFC", name)
    if name.isascii():
        return ""
    if font is None:
        return "" if all(_opencv_can_write(char) for char in name) else "letters"
    from detector.core.stages.font import can_shape, needs_shaping

    if not font.can_write(name):
        return "letters"
    return "order" if needs_shaping(name) and not can_shape() else ""


@cache
def _opencv_can_write(char: str) -> bool:
    """Return whether OpenCV's own font writes this letter correctly anywhere in a name."""
    if char.isascii():
        return True
    # OpenCV 5 does not shape text: it draws Arabic backwards and unjoined, and marks separately.
    joins = unicodedata.bidirectional(char) in ("R", "AL", "AN")
    if not MANY_SCRIPTS or joins or unicodedata.category(char)[0] in "MC":
        return False
    return not np.array_equal(_sample(char), _sample("?"))  # "?" stands for missing letters


def _sample(char: str) -> Image:
    picture = np.zeros((64, 64, 3), np.uint8)
    cv2.putText(picture, char, (8, 48), FONT, 1.0, (255, 255, 255), 1, cv2.LINE_AA)
    return picture


# Places for a label, best first: above the box at its left or right corner, below it, next to it,
# then inside. A place is two indexes, of a horizontal and of a vertical position. Horizontally, the
# label is flush with the box's left edge (0) or right edge (1), right of the box (2) or left of it
# (3). Vertically, it is above the box (0), below it (1), or flush with its top (2) or bottom (3).
PLACES = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 2), (3, 2), (0, 2), (1, 2), (0, 3))
# For each place, which corner of the box it is at: (right?, bottom?).
CORNERS = tuple((left in (1, 2), top in (1, 3)) for left, top in PLACES)


class LabelSpace:
    """The free space for labels in a picture. ``boxes``: xyxy [M, 4] in pixels. ``people``: indexes
    of boxes of people, whose heads stay visible if possible."""

    def __init__(
        self,
        width: int,
        height: int,
        boxes: NDArray[np.float32],
        line: int,
        people: Sequence[int] = (),
    ) -> None:
        self._width, self._height = width, height
        self._cell = max(1, -(-max(width, height) // CELLS))
        # Each row of cells is an integer with a bit per cell, so that checking a place
        # takes a few operations. An array would need a numpy call.
        self._taken = [0] * (-(-height // self._cell) + 1)
        self._line = line // 2
        self._boxes: list[Sides] = boxes.tolist()
        self._objects = [_weigh(*box) for box in self._boxes]
        self._heads = [_weigh(*_estimate_head(*self._boxes[i])) for i in people]

    def find(self, which: Sequence[int], labels: Sequence[Label]) -> list[Position | None]:
        """Find a place for each box's label in turn; None if nothing is free."""
        few = len(self._boxes) <= MANY
        orders = map(self._rank, which, labels) if few else self._rank_all(which, labels)
        return [
            next((at for at in order if self.take(at[0], at[1], label.width, label.height)), None)
            for label, order in zip(labels, orders, strict=True)
        ]

    def _edges(self, i: int, wide: int, high: int) -> tuple[list[int], list[int]]:
        """Return the four left edges and the four tops of box ``i``'s label, moved back into the
        picture if the label exceeds it."""
        (x1, y1, x2, y2), line = self._boxes[i], self._line
        left, right = round(x1) - line, round(x2) + line
        top, bottom = round(y1) - line, round(y2) + line
        last, lowest = self._width - wide, self._height - high
        lefts = [max(0, min(x, last)) for x in (left, right - wide, right, left - wide)]
        return lefts, [max(0, min(y, lowest)) for y in (top - high, bottom, top, bottom - high)]

    def _rank(self, i: int, label: Label) -> Iterator[Position]:
        """Yield places for a label of box ``i``: first those that hide almost nothing, then those
        that hide a little, then those that hide a face."""
        wide, high = label.width, label.height
        lefts, tops = self._edges(i, wide, high)
        around = lefts[3], tops[0], lefts[2] + wide, tops[1] + high
        objects, heads = _select_near(self._objects, *around), _select_near(self._heads, *around)
        later = []
        for number, (left, top) in enumerate(PLACES):
            x, y = lefts[left], tops[top]
            hidden = _sum_hidden(objects, x, y, x + wide, y + high)
            if hidden > HIDDEN_SHARE:
                continue
            face = _sum_hidden(heads, x, y, x + wide, y + high) > HEAD_SHARE
            if worse := 2 * face + (hidden > HIDDEN_SHARE / 4):
                later.append((worse, number, x, y))
            else:
                yield x, y, number
        for _, number, x, y in sorted(later):
            yield x, y, number

    def _rank_all(
        self, which: Sequence[int], labels: Sequence[Label]
    ) -> Iterator[Iterator[Position]]:
        sizes = [(label.width, label.height) for label in labels]
        starts = np.array([self._edges(i, *size) for i, size in zip(which, sizes, strict=True)])
        ends = starts + np.array(sizes)[..., None]  # [n, 2, 4]
        hidden = _sum_all_hidden(self._objects, starts, ends)
        faces = _sum_all_hidden(self._heads, starts, ends)
        unfit = hidden > HIDDEN_SHARE
        worse = np.where(unfit, 4, (hidden > HIDDEN_SHARE / 4) + 2 * (faces > HEAD_SHARE))
        order = worse.argsort(axis=1, kind="stable").tolist()
        fits = (len(PLACES) - unfit.sum(axis=1)).tolist()
        for (lefts, tops), best, last in zip(starts.tolist(), order, fits, strict=True):
            yield ((lefts[PLACES[i][0]], tops[PLACES[i][1]], i) for i in best[:last])

    def take(self, x: int, y: int, width: int, height: int) -> bool:
        """Take the place if it is free. Return whether it was."""
        cell, taken = self._cell, self._taken
        left, top = x // cell, y // cell
        cells = ((1 << (-(-(x + width) // cell) - left)) - 1) << left
        bottom = -(-(y + height) // cell)
        rows = taken[top:bottom]
        for row in rows:
            if row & cells:
                return False
        taken[top:bottom] = [row | cells for row in rows]
        return True


def _estimate_head(x1: float, y1: float, x2: float, y2: float) -> Sides:
    """Estimate where a person's head is: at the top centre, at most 0.35 of the box's height. This
    fits a person who is close and cut off. A standing person's head is a seventh of the height."""
    wide, high = x2 - x1, y2 - y1
    return x1 + 0.2 * wide, y1, x2 - 0.2 * wide, y1 + min(0.35 * high, 0.6 * wide)


def _weigh(x1: float, y1: float, x2: float, y2: float) -> Weighed:
    return x1, y1, x2, y2, 1 / max((x2 - x1) * (y2 - y1), 1)


def _select_near(
    objects: Sequence[Weighed], left: float, top: float, right: float, bottom: float
) -> list[Weighed]:
    return [
        one
        for one in objects
        if one[0] < right and one[2] > left and one[1] < bottom and one[3] > top
    ]


def _sum_hidden(
    objects: Sequence[Weighed], left: float, top: float, right: float, bottom: float
) -> float:
    """Return the share of each object that this area hides, summed over all objects."""
    hidden = 0.0
    for x1, y1, x2, y2, per_area in objects:
        across = (x2 if x2 < right else right) - (x1 if x1 > left else left)
        if across > 0:
            down = (y2 if y2 < bottom else bottom) - (y1 if y1 > top else top)
            if down > 0:
                hidden += across * down * per_area
    return hidden


def _sum_all_hidden(
    objects: Sequence[Weighed], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return [n, 9]: ``_sum_hidden`` for each label at each of the PLACES. ``starts``: a label's
    possible left edges and tops, [n, 2, 4]; ``ends``: the opposite edges."""
    hidden = np.zeros((len(starts), 4, 4), np.float32)
    x1, y1, x2, y2, per_area = np.array(objects, np.float32).reshape(-1, 5).T
    firsts, lasts = np.stack([x1, y1])[:, None], np.stack([x2, y2])[:, None]
    starts, ends = starts.astype(np.float32), ends.astype(np.float32)
    step = max(1, PAIRS_AT_ONCE // max(1, len(objects)))
    for at in range(0, len(starts), step):
        rows = slice(at, at + step)
        shared = np.minimum(ends[rows, ..., None], lasts)
        shared -= np.maximum(starts[rows, ..., None], firsts)
        np.maximum(shared, 0, out=shared)
        shared[:, 0] *= per_area
        np.matmul(shared[:, 0], shared[:, 1].transpose(0, 2, 1), out=hidden[rows])
    return hidden[:, [left for left, _ in PLACES], [top for _, top in PLACES]]
