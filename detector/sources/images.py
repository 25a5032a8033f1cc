"""Pictures: a folder, a glob or a single file. Each is one frame; the time of frame n is n seconds."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from detector.errors import SourceError
from detector.sources._cv2 import cv2, fits
from detector.sources.base import SteppingSource
from detector.types import Frame, Image, SourceInfo

ANIMATION_SAID_WITHIN = (
    4096  # bytes from the start: before the pixels, behind a colour profile at most
)
MAX_NOTES = 10  # pictures named one by one; unreadable ones are all counted


def open(
    spec: str, paths: Sequence[str], stride: int = 1, frames: int | None = None
) -> SteppingSource:
    """``paths`` in their order. Raises SourceError when none of those asked for is readable."""
    return PictureSource(spec, paths, stride, frames)


class PictureSource(SteppingSource):
    """Frame.index is the number in the list, so an unreadable picture leaves a gap."""

    decoder = "opencv"

    def __init__(
        self, spec: str, paths: Sequence[str], stride: int = 1, frames: int | None = None
    ) -> None:
        super().__init__(stride, frames)
        self._paths = paths
        self._grabbed = 0
        self._first, first = self._first_readable(spec)
        self._first_image: Image | None = first
        self.info = SourceInfo(
            path=spec,
            kind="pictures",
            width=first.shape[1],
            height=first.shape[0],
            fps=Fraction(1),
            time_base=Fraction(1),
            frames_declared=len(paths),
            duration_s=float(len(paths)),
            codec=os.path.splitext(paths[self._first])[1].lstrip(".").lower(),
        )

    def _first_readable(self, spec: str) -> tuple[int, Image]:
        for index in range(0, len(self._paths), self._stride):
            image = load(self._paths[index])
            if image is not None:
                return index, image
        if len(self._paths) == 1:
            raise SourceError(
                f"{spec}: cannot be read as a picture; replace it (does a viewer open it?)"
            )
        raise SourceError(
            f"{spec}: none of its {len(self._paths)} pictures can be read; does a viewer open them?"
        )

    def grab(self) -> bool:
        self._grabbed += 1
        return self._grabbed <= len(self._paths)

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        path = self._paths[index]
        image = self._taken_first() if index == self._first else load(path, into)
        if image is None:
            self._note_bad(path)
            return None
        if _is_animated(path):
            self._note(
                f"{path}: an animation, of which only the first picture is taken; make a video of it for all"
            )
        return Frame(index, index, float(index), image, path)

    def _taken_first(self) -> Image | None:
        image, self._first_image = self._first_image, None
        return image

    def _note_bad(self, path: str) -> None:
        self.counts.bad += 1
        self._note(f"{path}: cannot be read as a picture, skipped")

    def _note(self, what: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(what)

    def close(self) -> None:
        super().close()
        self._first_image = None


def _is_animated(path: str) -> bool:
    """Of WebP and PNG, which cv2 takes for their first picture; a GIF is read as a video."""
    if not path.lower().endswith((".webp", ".png")):
        return False
    try:
        with builtins.open(path, "rb") as file:
            head = file.read(ANIMATION_SAID_WITHIN)
    except OSError:
        return False
    if head[12:16] == b"VP8X":
        return bool(head[20] & 2)
    return b"acTL" in head.partition(b"IDAT")[0]


def load(path: str, into: Image | None = None) -> Image | None:
    """u8 BGR [h, w, 3] with the EXIF orientation applied; grey, 16 bit and alpha are converted.
    None: unreadable.
    """
    try:
        # Read by numpy: also where cv2.imread cannot take the name.
        image = _decoded(np.fromfile(path, np.uint8))
    except (OSError, cv2.error):
        return None
    if into is None or image is None or not fits(into, image.shape[1], image.shape[0]):
        return image
    np.copyto(into, image)
    return into


def _decoded(data: NDArray[np.uint8]) -> Image | None:
    if not data.size or (
        data[:4].tobytes() == b"\x89PNG" and b"IEND" not in data[-4096:].tobytes()
    ):
        return None  # a PNG without its end: libpng would complain on the terminal
    image: Image | None = cv2.imdecode(data, cv2.IMREAD_COLOR)
    return image
