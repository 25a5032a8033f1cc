"""Pictures: a folder, a glob or a single file. Each is one frame; frame n is at n seconds."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from detector.errors import SourceError
from detector.sources._cv2 import cv2, fits
from detector.sources._unclaimed import is_live
from detector.sources.base import SteppingSource, check_file
from detector.types import Frame, Image, SourceInfo

PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# For a hint where a folder holds videos and no picture.
VIDEOS = tuple(".avi .flv .m4v .mkv .mov .mp4 .mpeg .mpg .mts .ts .webm .wmv".split())
# Bytes from the start in which a file says that it is an animation: before the pixels, and behind a
# colour profile at most.
ANIMATION_SAID_WITHIN = 4096
MAX_NOTES = 10  # so many pictures are named in notes; unreadable ones are all counted


def list_pictures(spec: str) -> list[str]:
    """The pictures of a spec that ``PicturesSource`` claims, in order. Raises SourceError."""
    if os.path.isdir(spec):
        return _select_pictures(spec, _list_files(spec), "the folder")
    if os.path.exists(spec):
        check_file(spec)
        return [spec]
    matches = filter(os.path.isfile, glob.iglob(spec, recursive=True))
    return _select_pictures(spec, matches, "the pattern")


def _list_files(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise SourceError(
            f"{folder}: cannot be listed ({error.strerror}); check its permissions: ls -ld"
        ) from error
    # DirEntry.is_file would raise for a link that leads to itself; isfile says that it is none.
    return [path for path in paths if os.path.isfile(path)]


def _select_pictures(spec: str, paths: Iterable[str], what: str) -> list[str]:
    found = list(paths)
    pictures = sorted((path for path in found if path.lower().endswith(PICTURES)), key=_natural_key)
    if pictures:
        return pictures
    videos = [path for path in found if path.lower().endswith(VIDEOS)]
    if videos:
        by_name = os.path.join(os.path.dirname(videos[0]), f"*{os.path.splitext(videos[0])[1]}")
        what = f"{what} has no picture but {len(videos)} videos"
        raise SourceError(f"{spec}: {what}; give them by name, unquoted: {by_name}")
    others = f"{len(found)} other files" if found else "nothing at all"
    raise SourceError(
        f"{spec}: {what} has no picture ({others}; wanted {' '.join(PICTURES)}); check the path"
    )


def _natural_key(path: str) -> list[tuple[bool, int, str]]:
    """Sorts img2 before img10: digits compare as numbers."""
    parts = re.split(r"(\d+)", path)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


class PicturesSource(SteppingSource):
    """One frame per picture. Frame.index is the number in the list: an unreadable one leaves a gap."""

    decoder = "opencv"

    @classmethod
    def claims(cls, spec: str) -> bool:
        """A folder, a file with a picture's suffix, or a pattern that is no file's name."""
        if os.path.isdir(spec):
            return True
        if os.path.lexists(spec):
            return os.path.exists(spec) and spec.lower().endswith(PICTURES)
        return glob.has_magic(spec) and not is_live(spec)

    @classmethod
    def open(
        cls, spec: str, *, decoder: str = "auto", stride: int = 1, frames: int | None = None
    ) -> PicturesSource:
        return cls(spec, list_pictures(spec), stride, frames)

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
            image = read_picture(self._paths[index])
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
        image = self._take_first() if index == self._first else read_picture(path, into)
        if image is None:
            self._note_bad(path)
            return None
        if _is_animated(path):
            self._note(
                f"{path}: this is an animation and only its first picture is used; "
                "convert it to a video to use all of them"
            )
        return Frame(index, index, float(index), image, path)

    def _take_first(self) -> Image | None:
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
    """True for an animated WebP or PNG, of which cv2 reads the first picture. A GIF is a video."""
    if not path.lower().endswith((".webp", ".png")):
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(ANIMATION_SAID_WITHIN)
    except OSError:
        return False
    if head[12:16] == b"VP8X":
        return bool(head[20] & 2)
    return b"acTL" in head.partition(b"IDAT")[0]


def read_picture(path: str, into: Image | None = None) -> Image | None:
    """u8 BGR [h, w, 3] with the EXIF orientation applied, or None where it cannot be read.

    Grey, 16-bit and alpha pictures are converted. The result is ``into`` if that fits.
    """
    try:
        # numpy reads files whose names cv2.imread cannot take.
        image = _decode(np.fromfile(path, np.uint8))
    except (OSError, cv2.error):
        return None
    if into is None or image is None or not fits(into, image.shape[1], image.shape[0]):
        return image
    np.copyto(into, image)
    return into


def _decode(data: NDArray[np.uint8]) -> Image | None:
    if not data.size or (
        data[:4].tobytes() == b"\x89PNG" and b"IEND" not in data[-4096:].tobytes()
    ):
        return None  # a PNG without its end, for which libpng would write to the terminal
    image: Image | None = cv2.imdecode(data, cv2.IMREAD_COLOR)
    return image
