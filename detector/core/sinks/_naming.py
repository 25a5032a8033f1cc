"""Name frames, so that pictures, labels and rows of one source have matching names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from detector.core.types import Frame

LOSSY_SUFFIXES = (".avif", ".heic", ".heif", ".hif", ".jfif", ".mpo")


def make_picture_name(frame: Frame) -> PurePath | None:
    """Return the name for a picture's outputs, perhaps with folders; None for a video's frame."""
    if frame.name is not None:
        return PurePath(frame.name)
    return None if frame.path is None else PurePath(PurePath(frame.path).name)


def choose_copy_suffix(path: str | PurePath, known: Sequence[str]) -> str:
    """Return an annotated copy's suffix: the picture's own if in ``known``, else .jpg or .png."""
    own = PurePath(path).suffix
    if own.lower() in known:
        return own
    with suppress(OSError), open(path, "rb") as file:
        if file.read(3) == b"\xff\xd8\xff":
            return ".jpg"
    return ".jpg" if own.lower() in LOSSY_SUFFIXES else ".png"


class FrameNames:
    def __init__(self) -> None:
        self.folder: Path | None = None  # folder of the annotated pictures, if they are written
        self.written: tuple[int, Path] | None = None  # index and path of the last annotated picture
        self.only_stem: str | None = None  # stem of the picture, if it is the only one
        self._used_stems: set[str] | None = None
        self._last: tuple[int, str] | None = None

    def make_unique(self, *reserved: str) -> None:
        """Make later stems unique (even those of a.jpg and a.png), and unlike ``reserved``."""
        self._used_stems = (self._used_stems or set()) | {*reserved}

    def stem(self, frame: Frame) -> str:
        """Return the frame's name without a suffix, perhaps with folders."""
        if self._last is None or self._last[0] != frame.index:
            self._last = frame.index, self._choose(frame)
        return self._last[1]

    def _choose(self, frame: Frame) -> str:
        if self.only_stem is not None:
            return self.only_stem
        name = make_picture_name(frame)
        stem = f"frame_{frame.index:06d}" if name is None else str(name.with_suffix(""))
        return stem if self._used_stems is None else free_name(stem, "", self._used_stems)


def free_name(stem: str, suffix: str, taken: set[str]) -> str:
    """Return the first of a.jpg, a-2.jpg, a-3.jpg... not in ``taken``, and add it to ``taken``."""
    name, n = stem + suffix, 1
    while name in taken:
        n += 1
        name = f"{stem}-{n}{suffix}"
    taken.add(name)
    return name
