"""The names of frames in the outputs of one source, so that pictures, labels and rows match."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from detector.core.types import Frame

LIKE_JPEG = (".avif", ".heic", ".heif", ".hif", ".jfif", ".mpo")  # lossy formats of photos


def picture_name(frame: Frame) -> PurePath | None:
    """Return the name of a picture's outputs, with its folder if any; None in a video."""
    if frame.name is not None:
        return PurePath(frame.name)
    return None if frame.path is None else PurePath(PurePath(frame.path).name)


def format_of_copy(path: str | PurePath, known: Sequence[str]) -> str:
    """Return an annotated copy's suffix: the picture's own if ``known``, else .jpg or .png."""
    own = PurePath(path).suffix
    if own.lower() in known:
        return own
    with suppress(OSError), open(path, "rb") as file:
        if file.read(3) == b"\xff\xd8\xff":
            return ".jpg"
    return ".jpg" if own.lower() in LIKE_JPEG else ".png"


class FrameNames:
    def __init__(self) -> None:
        self.folder: Path | None = None  # folder of the annotated pictures, if any are written
        # The frame whose picture was written last, and the picture's final path.
        self.written: tuple[int, Path] | None = None
        self._one: str | None = None  # stem of the only picture
        self._taken: set[str] | None = None
        self._last: tuple[int, str] | None = None

    def call_all(self, stem: str) -> None:
        self._one = stem

    def make_unique(self, *taken: str) -> None:
        """Make stems unique (a.jpg, a.png) from now on, and different from ``taken``."""
        self._taken = (self._taken or set()) | {*taken}

    def stem(self, frame: Frame) -> str:
        """Return the frame's name without a suffix; it may include folders."""
        if self._last is None or self._last[0] != frame.index:
            self._last = frame.index, self._choose(frame)
        return self._last[1]

    def _choose(self, frame: Frame) -> str:
        if self._one is not None:
            return self._one
        name = picture_name(frame)
        stem = f"frame_{frame.index:06d}" if name is None else str(name.with_suffix(""))
        return stem if self._taken is None else free_name(stem, "", self._taken)


def free_name(stem: str, suffix: str, taken: set[str]) -> str:
    """Reserve ``stem`` + ``suffix``, or the first free one of ``NAME-2``, ``NAME-3``..."""
    name, n = stem + suffix, 1
    while name in taken:
        n += 1
        name = f"{stem}-{n}{suffix}"
    taken.add(name)
    return name
