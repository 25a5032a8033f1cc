"""Where labels go in a picture full of boxes, and how their text is drawn.

A label may hide neither another label nor its object, and no face where there is another place.
Each label tries places around its box, with less and less text, and takes the first free one. If
there is none, a dot marks the box, or it stays bare: its colour still tells the class.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.types import Image

if TYPE_CHECKING:
    from detector.core.stages.font import Font

FONT = cv2.FONT_HERSHEY_SIMPLEX
FONT_HEIGHT = 21.0  # pixels of a capital at scale 1.0 with OpenCV 4; OpenCV 5 draws 14 there
MANY_SCRIPTS = int(cv2.__version__.split(".")[0]) >= 5  # OpenCV 4 has ASCII only

# A label may hide this share of the objects below it, added up over all boxes that it touches.
HIDDEN_SHARE = 0.08
# One that hides more of the heads of people, added up, goes where it hides less, if it can.
HEAD_SHARE = 0.04
CELLS = 320  # of the grid of taken places, along the picture's longer side: at most 100 kB
TOGETHER = 4096  # pairs of a label and a box that are weighed at once: buffers stay below 256 kB

Color = tuple[int, int, int]
Position = tuple[int, int, int]  # x, y of a label's top left corner, pixels; number of its place


class Label:
    """One text as a small picture, u8 BGR [h, w, 3]: drawn once, and copied into each frame."""

    __slots__ = ("height", "picture", "width")

    def __init__(self, picture: Image) -> None:
        self.picture = picture
        self.height, self.width = picture.shape[:2]

    def draw(self, image: Image, x: int, y: int) -> None:
        """Copies the label to ``x``, ``y``, cut where the picture ends."""
        height, width = image.shape[:2]
        wide, high = min(self.width, width - x), min(self.height, height - y)
        image[y : y + high, x : x + wide] = self.picture[:high, :wide]


@lru_cache(maxsize=1024)  # at 1280x720 a label has some 4 kB
def render(
    text: str, scale: float, fill: Color, ink: Color, score: str = "", font: Font | None = None
) -> Label:
    """The label of this text and score, kept: frames repeat theirs. ``font`` None: OpenCV's own."""
    pad = max(1, round(FONT_HEIGHT * scale / 5))
    if font is not None:
        return Label(_write_in_font(font, text, score, scale, pad, fill, ink))
    return Label(_write_in_opencv(f"{text} {score}".strip(), scale, pad, fill, ink))


def _write_in_opencv(text: str, scale: float, pad: int, fill: Color, ink: Color) -> Image:
    stroke = max(1, round(scale * 1.6))
    (width, height), below = cv2.getTextSize(text, FONT, scale, stroke)
    picture = np.empty((height + below // 2 + 2 * pad, width + 2 * pad, 3), np.uint8)
    picture[:] = fill
    cv2.putText(picture, text, (pad, pad + height), FONT, scale, ink, stroke, cv2.LINE_AA)
    return picture


def _write_in_font(
    font: Font, text: str, score: str, scale: float, pad: int, fill: Color, ink: Color
) -> Image:
    runs = font.write(tuple(part for part in (text, score) if part), scale)
    # All labels have room for a digit, so that they are mostly of one height.
    inked = [font.height(scale), *(run for run in runs if run.coverage.size)]
    top = min(run.top for run in inked)
    height = max(run.top + len(run.coverage) for run in inked) - top
    width = sum(run.advance for run in runs)
    coverage = np.zeros((height + 2 * pad, width + 2 * pad), np.uint8)
    x = pad
    for run in runs:
        # What reaches out of its run, as an italic letter does, is cut at the label's border alone.
        high, wide = run.coverage.shape
        left = min(max(0, x + run.left), max(0, coverage.shape[1] - wide))
        place = coverage[pad + run.top - top :, left:][:high, :wide]
        np.maximum(place, run.coverage[:, : place.shape[1]], out=place)
        x += run.advance
    picture: Image = _shades(fill, ink)[coverage]
    return picture


@lru_cache(maxsize=256)
def _shades(fill: Color, ink: Color) -> Image:
    """From ``fill`` to ``ink`` by coverage: u8 BGR [256, 3]."""
    share = np.arange(256, dtype=np.float32)[:, None] / 255
    ground, letters = np.array(fill, np.float32), np.array(ink, np.float32)
    shades: Image = np.rint(ground + (letters - ground) * share).astype(np.uint8)
    return shades


@lru_cache(maxsize=4096)
def drawable(name: str, class_id: int, font: Font | None = None) -> str:
    """``name``, or ``#3`` where it cannot be written as its readers do (``reason_against``)."""
    return f"#{class_id}" if reason_against(name, font) else unicodedata.normalize("NFC", name)


def reason_against(name: str, font: Font | None = None) -> str:
    """Why a label cannot show this name: "letters" that the font lacks, or "order", because they
    join or run from right to left and nothing here can do that. Empty if it can."""
    name = unicodedata.normalize("NFC", name)
    if name.isascii():
        return ""
    if font is None:
        return "" if all(_opencv_has(char) for char in name) else "letters"
    from detector.core.stages.font import can_shape, needs_shaping

    if not font.can_write(name):
        return "letters"
    return "order" if needs_shaping(name) and not can_shape() else ""


@cache
def _opencv_has(char: str) -> bool:
    """Whether OpenCV's own font writes this letter rightly wherever it stands in a name."""
    if char.isascii():
        return True
    # OpenCV 5 puts letters side by side as they come: Arabic is backwards and in letters apart,
    # and marks stand beside their letter.
    joins = unicodedata.bidirectional(char) in ("R", "AL", "AN")
    if not MANY_SCRIPTS or joins or unicodedata.category(char)[0] in "MC":
        return False
    return not np.array_equal(_sample(char), _sample("?"))  # what it draws for a letter it lacks


def _sample(char: str) -> Image:
    picture = np.zeros((64, 64, 3), np.uint8)
    cv2.putText(picture, char, (8, 48), FONT, 1.0, (255, 255, 255), 1, cv2.LINE_AA)
    return picture


# Where a label may lie, best place first: which of ``_lefts`` and which of ``_tops``. Above the box
# at its left or right corner, below it, beside it, then inside: the order in which people look.
PLACES = np.array([(0, 0), (1, 0), (0, 1), (1, 1), (2, 2), (3, 2), (0, 2), (1, 2), (0, 3)])
LEFTS, TOPS = PLACES.T
# The box's corner that a place lies at: (right?, bottom?).
CORNERS = tuple((left in (1, 2), top in (1, 3)) for left, top in PLACES.tolist())


class Places:
    """The free places of one picture, whose boxes are xyxy [M, 4] in pixels, and of which those of
    people are known by number: their heads stay free where they can."""

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
        # A row of cells is the bits of one number: a place is looked at in a few operations, where
        # an array would take a call of numpy for each place that is tried.
        self._taken = [0] * (-(-height // self._cell) + 1)
        self._boxes = np.ascontiguousarray(boxes.T)
        self._x1, self._y1, self._x2, self._y2 = self._boxes
        self._heads = _heads(self._boxes[:, list(people)]) if people else None
        self._line = line // 2

    def find(self, which: Sequence[int], labels: Sequence[Label]) -> list[Position | None]:
        """A place for the label of each of these boxes, in turn; None where nothing is free."""
        widths = np.array([label.width for label in labels], np.float32)
        heights = np.array([label.height for label in labels], np.float32)
        rows = np.asarray(which)
        lefts, tops = self._lefts(rows, widths), self._tops(rows, heights)
        hidden = _hides(lefts, tops, widths, heights, self._boxes)[:, LEFTS, TOPS]
        # What hides nothing goes before what hides a little, and that before what hides a face.
        worse = (hidden > HIDDEN_SHARE / 4).astype(np.int8)
        if self._heads is not None:
            faces = _hides(lefts, tops, widths, heights, self._heads)[:, LEFTS, TOPS]
            worse += 2 * (faces > HEAD_SHARE)
        order = np.argsort(worse, axis=1, kind="stable")
        xs = lefts.astype(np.int64)[:, LEFTS].tolist()
        ys = tops.astype(np.int64)[:, TOPS].tolist()
        fits = (hidden <= HIDDEN_SHARE).tolist()
        found: list[Position | None] = []
        for label, x, y, fit, wanted in zip(labels, xs, ys, fits, order.tolist(), strict=True):
            for i in wanted:
                if fit[i] and self.take(x[i], y[i], label.width, label.height):
                    found.append((x[i], y[i], i))
                    break
            else:
                found.append(None)
        return found

    def _lefts(self, rows: NDArray[np.int64], widths: NDArray[np.float32]) -> NDArray[np.float32]:
        """Left edges [n, 4]: at the box's left, at its right, right of it, left of it; moved back
        into the picture if they leave it."""
        x1, x2 = self._x1[rows].round() - self._line, self._x2[rows].round() + self._line
        return _within(x1, x2 - widths, x2, x1 - widths, self._width - widths)

    def _tops(self, rows: NDArray[np.int64], heights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Top edges [n, 4]: above the box, below it, at its top, at its bottom."""
        y1, y2 = self._y1[rows].round() - self._line, self._y2[rows].round() + self._line
        return _within(y1 - heights, y2, y1, y2 - heights, self._height - heights)

    def take(self, x: int, y: int, width: int, height: int) -> bool:
        """Takes the place if nothing that was drawn touches it. False where something does."""
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


def _heads(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Where the heads of people are, x1, y1, x2, y2 [4, K]: in the middle at the top. Of somebody
    who stands it is a seventh of the box; of somebody who is near, and cut off, up to a third."""
    x1, y1, x2, y2 = boxes
    wide, high = x2 - x1, y2 - y1
    below = y1 + np.minimum(0.35 * high, 0.6 * wide)
    return np.stack([x1 + 0.2 * wide, y1, x2 - 0.2 * wide, below])


def _hides(
    lefts: NDArray[np.float32],
    tops: NDArray[np.float32],
    widths: NDArray[np.float32],
    heights: NDArray[np.float32],
    boxes: NDArray[np.float32],
) -> NDArray[np.float32]:
    """What each label would hide at each left and top, [n, 4, 4]: shares of ``boxes`` (x1, y1, x2,
    y2 [4, M]), added up."""
    hidden = np.empty((len(lefts), 4, 4), np.float32)
    x1, y1, x2, y2 = boxes
    per_area = 1 / np.maximum((x2 - x1) * (y2 - y1), 1)
    step = max(1, TOGETHER // len(x1))
    for at in range(0, len(lefts), step):
        rows = slice(at, at + step)
        across = _overlap(lefts[rows], widths[rows], x1, x2)
        across *= per_area
        down = _overlap(tops[rows], heights[rows], y1, y2)
        np.matmul(across, down.transpose(0, 2, 1), out=hidden[rows])
    return hidden


def _within(
    first: NDArray[np.float32],
    second: NDArray[np.float32],
    third: NDArray[np.float32],
    fourth: NDArray[np.float32],
    last: NDArray[np.float32],
) -> NDArray[np.float32]:
    """The four edges of each label [n] as [n, 4], moved to 0 .. ``last``."""
    edges = np.empty((len(first), 4), np.float32)
    edges[:, 0], edges[:, 1], edges[:, 2], edges[:, 3] = first, second, third, fourth
    np.minimum(edges, last[:, None], out=edges)
    np.maximum(edges, 0, out=edges)
    return edges


def _overlap(
    starts: NDArray[np.float32],
    lengths: NDArray[np.float32],
    begins: NDArray[np.float32],
    ends: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Along one axis, pixels that each label [n, 4] shares with each box [M]: [n, 4, M]."""
    shared: NDArray[np.float32] = np.minimum((starts + lengths[:, None])[..., None], ends)
    shared -= np.maximum(starts[..., None], begins)
    np.maximum(shared, 0, out=shared)
    return shared
