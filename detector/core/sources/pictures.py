"""Pictures: a folder, a pattern (``*.jpg``, ``frame_%04d.jpg``), files by name, or a single file.

Each is one frame; frame n is at n seconds.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import SourceError
from detector.core.errors.holding import name_to_open
from detector.core.errors.text import counted
from detector.core.sources._contents import (
    FFMPEG_PICTURES,
    FIRST_JPEG_WITHIN,
    PICTURE,
    holds_jpegs,
    kind_of,
    kind_of_name,
)
from detector.core.sources._cv2 import cv2, fits
from detector.core.sources._specs import (
    Gathered,
    NamedPictures,
    is_numbered,
    list_pictures,
    look_into,
)
from detector.core.sources._unclaimed import is_live
from detector.core.sources.base import ANY, Choice, How, SteppingSource
from detector.core.types import Frame, Image, SourceInfo

HEAD_BYTES = 4096  # in which a file says that it is an animation, behind a colour profile at most
MAX_NOTES = 10  # so many pictures are named in notes; unreadable ones are all counted


class PicturesSource(SteppingSource):
    """One frame per picture. ``Frame.index`` counts in the list: an unreadable one leaves a gap."""

    decoder = "opencv"
    has_tracks = True

    @classmethod
    def claims(cls, spec: str) -> bool:
        """A folder, a file that holds a picture, or a pattern that is no file's name."""
        if isinstance(spec, NamedPictures) or os.path.isdir(spec):
            return True
        if os.path.lexists(spec):
            return os.path.exists(spec) and kind_of(spec, closely=True) == PICTURE
        return is_numbered(spec) or (glob.has_magic(spec) and not is_live(spec))

    @classmethod
    def check_spec(cls, spec: str) -> None:
        list_pictures(spec)

    @classmethod
    def open(cls, spec: str, **how: Unpack[How]) -> PicturesSource:
        choice = how.get("choice", ANY)
        choice.refuse_tracks(spec)
        paths = list_pictures(spec)
        source = cls(spec, paths, how.get("stride", 1), how.get("frames"), choice)
        if not isinstance(spec, Gathered) and (contents := look_into(spec)) is not None:
            from detector.core.sources._left_out import describe_left_out

            source._left_out = describe_left_out(spec, contents, videos=True)
        return source

    def __init__(
        self,
        spec: str,
        paths: Sequence[str],
        stride: int = 1,
        frames: int | None = None,
        choice: Choice = ANY,
    ) -> None:
        super().__init__(stride, frames)
        self._choice = choice
        self._paths = paths
        self._names = _output_names(paths)
        self._grabbed = 0
        self._left_out = ""  # said at the end, behind what is wrong with single pictures
        # What was done to samples, without their range -> first picture, with it; how many others;
        # place of the note.
        self._told: dict[str, tuple[tuple[str, str], int, int]] = {}
        self._first, first = self._first_readable(spec)
        self._first_image: Image | None = first
        self.info = SourceInfo(
            path=str(spec),
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
            image = self._read(self._paths[index])
            if image is not None:
                return index, image
        if len(self._paths) == 1:
            if why := _why_unread(self._paths[0]):
                cure = "make it smaller" if "pixels" in why else "write it again"
                cure = "save it as 8-bit RGB" if "TIFF" in why else cure
                cure = "convert it: heif-convert IN.heic OUT.jpg" if "tiles" in why else cure
                raise SourceError(f"{spec}: {why}; {cure}")
            raise SourceError(
                f"{spec}: cannot be read as a picture; replace it (does a viewer open it?)"
            )
        raise SourceError(
            f"{spec}: none of its {counted(len(self._paths), 'picture')} can be read; check that a "
            "viewer opens them"
        )

    def grab(self) -> bool:
        self._grabbed += 1
        if self._grabbed <= len(self._paths):
            return True
        self.at_limit()
        return False

    def at_limit(self) -> None:
        if self._left_out:
            self.notes.append(f"{self.info.path}: {self._left_out}")
        self._left_out = ""

    def grabbed_pts(self) -> int:
        return self._grabbed - 1

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        path = self._paths[index]
        image = self._take_first() if index == self._first else self._read(path, into)
        if image is None:
            self._note_bad(path)
            return None
        if kind_of_name(path) != PICTURE:
            self._tell(path, "its name is not that of a picture, but it holds one")
        from detector.core.sources._tiff import read_taken

        name, taken = self._names[index], read_taken(path)
        return Frame(index, index, float(index), image, path, name=name, taken=taken)

    def _read(self, path: str, into: Image | None = None) -> Image | None:
        image, said = read_and_tell(path, into, self._choice)
        if image is not None and (said := said or self._choice.tell_grey(None)):
            self._tell(path, said)
        return image

    def _tell(self, path: str, said: str) -> None:
        """One note for all pictures of which the same is to be said, but for numbers."""
        kind = re.sub(r"[\d.]+ to [\d.]+", "", said)
        first, others, at = self._told.get(kind, ((path, said), -1, len(self.notes)))
        if others < 0 and len(self.notes) >= MAX_NOTES:
            return
        self._told[kind] = first, others + 1, at
        more = f" (and {counted(others + 1, 'other')})" if others >= 0 else ""
        self.notes[at : at + 1] = [f"{first[0]}{more}: {first[1]}"]

    def _take_first(self) -> Image | None:
        image, self._first_image = self._first_image, None
        return image

    def _note_bad(self, path: str) -> None:
        self.counts.bad += 1
        if len(self.notes) < MAX_NOTES:
            why = _why_unread(path) or "cannot be read as a picture"
            self.notes.append(f"{path}: {why}, skipped")

    def close(self) -> None:
        super().close()
        self._first_image = None


def _output_names(paths: Sequence[str]) -> list[str]:
    """The files' names. Those that several have keep their folders below the common one."""
    names = [os.path.basename(path) for path in paths]
    often = {name for name, count in Counter(names).items() if count > 1}
    if not often:
        return names
    whole = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in whole])
    return [
        os.path.relpath(path, common) if name in often else name
        for path, name in zip(whole, names, strict=True)
    ]


def read_picture(path: str, into: Image | None = None) -> Image | None:
    """u8 BGR [h, w, 3] with the EXIF orientation applied, in ``into`` if that fits; None if
    it cannot be read. Grey, 16-bit and alpha pictures are converted."""
    return read_and_tell(path, into)[0]


def read_size(path: str) -> tuple[int, int] | None:
    """Width and height as the picture is shown; None if it cannot be read."""
    from detector.core.sources._picture_size import claimed_size

    with suppress(OSError), open(name_to_open(path), "rb") as file:
        head = file.read(64 << 10)
        is_plain = head.startswith(b"\xff\xd8") and b"Exif\0\0" not in head  # not rotated
        if is_plain and (size := claimed_size(head)) is not None:
            return size
    image = read_picture(path)
    return None if image is None else (image.shape[1], image.shape[0])


def read_and_tell(
    path: str, into: Image | None = None, choice: Choice = ANY
) -> tuple[Image | None, str]:
    """``read_picture``, and what was done to samples of more than 8 bits; "" for nothing."""
    try:
        if path.lower().endswith(FFMPEG_PICTURES):
            image, said = _decode_with_ffmpeg(path, choice)
        else:
            # numpy reads files whose names cv2.imread cannot take.
            data = np.fromfile(name_to_open(path), np.uint8)
            image, said = _decode(data, choice)
            if image is None and data[4:8].tobytes() == b"ftyp":  # a HEIF by another name
                image, said = _decode_with_ffmpeg(path, choice)
    except (OSError, cv2.error, SourceError):
        return None, ""
    if into is None or image is None or not fits(into, image.shape[1], image.shape[0]):
        return image, said
    np.copyto(into, image)
    return into, said


def _decode_with_ffmpeg(path: str, choice: Choice) -> tuple[Image | None, str]:
    """The one frame of a "video", and what was done to its samples. Raises SourceError."""
    from detector.core.sources._heif import DESCRIBED_WITHIN, decode_tiles, read_item
    from detector.core.sources.video._container import probe
    from detector.core.sources.video.av import AvSource

    with open(name_to_open(path), "rb") as file:
        item = read_item(file.read(DESCRIBED_WITHIN), path)
    if item is not None and item.is_ours:
        return decode_tiles(path, item), ""
    video = probe(path, choice)
    with AvSource(video) as source:
        frame, grey = source.read(), video.grey
        return None if frame is None else frame.image.copy(), grey.said if grey else ""


def _why_unread(path: str) -> str | None:
    """Words for a picture too large, cut off or of odd tiles; None where it is something else."""
    from detector.core.sources._picture_size import why_not_decoded
    from detector.core.sources._tiff import STARTS

    try:
        data = np.fromfile(name_to_open(path), np.uint8).tobytes()
    except OSError:
        return None
    if data[4:8] == b"ftyp" and (b"grid" in data[:HEAD_BYTES] or b"iovl" in data[:HEAD_BYTES]):
        return "its tiles cannot be put together"
    if path.lower().endswith(FFMPEG_PICTURES):
        return None
    is_tiff = data.startswith(STARTS)
    return why_not_decoded(data) or (
        "a damaged TIFF, or of an unsupported kind" if is_tiff else None
    )


def _decode(data: NDArray[np.uint8], choice: Choice) -> tuple[Image | None, str]:
    from detector.core.sources._picture_size import why_not_decoded

    if not data.size or why_not_decoded(data.tobytes()):
        return None, ""
    from detector.core.sources._deep import decode_deep

    if (deep := decode_deep(data, choice.grey)) is not None:
        return deep
    image = cv2.imdecode(data, cv2.IMREAD_COLOR)
    if image is not None and data[4:8].tobytes() == b"ftyp":
        from detector.core.sources._heif import DESCRIBED_WITHIN, read_item, turn

        item = read_item(data[:DESCRIBED_WITHIN].tobytes(), "AVIF")
        if item is not None and item.is_ours:
            return None, ""
        image = image if item is None else turn(image, item.turns)
    return image, _name_unread(data[:FIRST_JPEG_WITHIN].tobytes())


def _name_unread(data: bytes) -> str:
    """What is not used of a file of several pictures; "" where it has one. A GIF is a video."""
    is_animated = data[12:16] == b"VP8X" and data[20] & 2
    if is_animated or b"acTL" in data[:HEAD_BYTES].partition(b"IDAT")[0]:
        return "an animation: only its first picture is used; convert it to a video to use all"
    many = "a stream of pictures: only the first is used; give it by name to use all"
    return many if holds_jpegs(data) else ""
