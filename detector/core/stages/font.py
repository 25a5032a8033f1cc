"""Draw text with the user's font file, in any script for which it has letters.

Pillow uses FreeType for letters, HarfBuzz to join them, and FriBidi to order right-to-left text.
OpenCV lacks the last two, so it draws Arabic backwards and unjoined.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from io import BytesIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from detector.core.errors import UsageError

# Pixels of the em at scale 1.0. Capitals are then 20 high, between OpenCV 5's 14 and OpenCV 4's 21.
EM = 28.0
SMALLEST = 9  # pixels of the em: smaller letters are illegible
SAMPLE = 32  # pixels of the em for comparing a letter with the sign for a missing one
# Largest width and height of a letter, in ems. A damaged font can claim any size; the longest
# ligatures of real fonts (U+FDFD) are some 10 wide.
LARGEST_LETTER = 16
NO_LETTER = "\uffff"  # not a character, so every font draws its sign for a missing one


class Text(NamedTuple):
    """Drawn text. ``coverage``: u8 [h, w], 255 where ink is. ``top``: its first row, in pixels
    below the baseline. ``advance``: pixels to the start of the next run."""

    coverage: NDArray[np.uint8]
    left: int
    top: int
    advance: int


class Font:
    """A font in memory. Letters that it lacks come from Pillow's own font (Latin). Raises OSError
    if ``data`` is not a scalable font (TTF, OTF, TTC)."""

    def __init__(self, data: bytes) -> None:
        sample = ImageFont.truetype(BytesIO(data), SAMPLE)
        self.data = data
        self.family, self.style = (str(name or "") for name in sample.getname())
        own = _Face(sample)
        plain = ImageFont.load_default(SAMPLE)
        self._faces = [own]
        if isinstance(plain, ImageFont.FreeTypeFont):
            self._faces.append(_Face(plain))
        self._draw = lru_cache(maxsize=1024)(_Face.draw)

    def can_write(self, text: str) -> bool:
        """Return whether the font has every letter and can draw it."""
        if not all(char.isspace() or self._find_face(char) for char in text):
            return False
        try:
            self.write((text,), SAMPLE / EM)
        except UsageError:
            return False
        return True

    def write(self, texts: tuple[str, ...], scale: float) -> list[Text]:
        """Split these texts into runs of one font. Return the drawn runs from left to right. Raises
        UsageError."""
        size = max(SMALLEST, round(EM * scale))
        gap = Text(np.empty((0, 0), np.uint8), 0, 0, round(size * 0.28))
        runs: list[Text] = []
        for text in texts:
            runs += [
                *([gap] if runs else []),
                *(self._draw(*run, size) for run in self._split_runs(text)),
            ]
        return runs[::-1] if runs_leftward("".join(texts)) else runs

    def height(self, scale: float) -> Text:
        """Return a drawn digit: every label is at least as high as a digit."""
        face = self._find_face("0") or self._faces[0]
        return self._draw(face, "0", max(SMALLEST, round(EM * scale)))

    def _find_face(self, char: str) -> _Face | None:
        return next((face for face in self._faces if face.has(char)), None)

    def _split_runs(self, text: str) -> list[tuple[_Face, str]]:
        """Split text by font. A mark stays with its letter, a space with the letter before it."""
        runs: list[tuple[_Face, str]] = []
        for char in text:
            if char.isspace() and not self._find_face(char):
                char = " "
            last = runs[-1][0] if runs else self._faces[0]
            is_mark = unicodedata.category(char)[0] == "M"
            keeps_face = runs and (is_mark or (char.isspace() and last.has(char)))
            face = last if keeps_face else self._find_face(char) or self._faces[0]
            if runs and runs[-1][0] is face:
                runs[-1] = (face, runs[-1][1] + char)
            else:
                runs.append((face, char))
        return runs


class _Face:
    """A font file in all sizes: the user's, or Pillow's own."""

    def __init__(self, font: ImageFont.FreeTypeFont) -> None:
        self._font = font
        # A variant without shaping, in which one character is one glyph.
        self._unshaped = font.font_variant(layout_engine=ImageFont.Layout.BASIC)
        self._sizes: dict[int, ImageFont.FreeTypeFont] = {}
        self._known: dict[str, bool] = {}
        self._absent = self._draw_sample(NO_LETTER)

    def has(self, char: str) -> bool:
        if (known := self._known.get(char)) is None:
            try:
                known = self._draw_sample(char) != self._absent
            except OSError:  # a damaged letter counts as missing
                known = False
            self._known[char] = known
        return known

    def _draw_sample(self, char: str) -> tuple[float, tuple[float, ...], bytes]:
        _check_size(self._unshaped, char)
        drawn = self._unshaped.getmask(char, "L")
        return self._unshaped.getlength(char), tuple(drawn.size), bytes(drawn)

    def draw(self, text: str, size: int) -> Text:
        if (font := self._sizes.get(size)) is None:
            font = self._sizes[size] = self._font.font_variant(size=size)
        try:
            x1, y1, x2, y2 = _check_size(font, text)
            picture = Image.new("L", (max(0, x2 - x1), max(0, y2 - y1)))
            if picture.width and picture.height:
                ImageDraw.Draw(picture).text((-x1, -y1), text, 255, font, anchor="ls")
        except OSError as error:
            raise UsageError(f'the font cannot draw "{text}": {error}; change --font') from error
        return Text(np.asarray(picture), x1, y1, max(x2, round(font.getlength(text))))


def _check_size(font: ImageFont.FreeTypeFont, text: str) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 of the ink of ``text``, pixels from the start of the baseline. Raises
    OSError if it is too large."""
    x1, y1, x2, y2 = font.getbbox(text, "L", anchor="ls")
    most = LARGEST_LETTER * font.size
    if y2 - y1 > most or x2 - x1 > most * max(1, len(text)):
        raise OSError("its glyphs are too large")
    return int(x1), int(y1), int(np.ceil(x2)), int(np.ceil(y2))


def runs_leftward(text: str) -> bool:
    """Return whether the first letter with a direction runs from right to left, like Arabic."""
    kinds = (unicodedata.bidirectional(char) for char in text)
    return next((kind != "L" for kind in kinds if kind in ("L", "R", "AL")), False)


def needs_shaping(text: str) -> bool:
    """Return whether letters join, change their order or carry marks."""
    return any(
        unicodedata.bidirectional(char) in ("R", "AL", "AN") or unicodedata.category(char)[0] == "M"
        for char in text
    )


def can_shape() -> bool:
    """Return whether Pillow can load FriBidi from the system."""
    return bool(features.check("raqm"))
