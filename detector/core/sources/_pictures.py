"""Read pictures one after another; frame n is at n seconds."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

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
    kind_of_name,
)
from detector.core.sources._cv2 import cv2
from detector.core.sources.base import ANY, Choice, SteppingSource, note_reduced
from detector.core.types import Frame, Image, Reduced, SourceInfo, size_of

if TYPE_CHECKING:
    from detector.core.timeline.crew import Crew, Pending

Read = tuple[Image | Reduced | None, str]
AHEAD_BYTES = 256 << 20  # limit for pictures decoded ahead; one is always allowed
JPEG = b"\xff\xd8"
REDUCED = {
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
HEAD_BYTES = 4096  # first bytes of a file, which state whether it is an animation
MAX_NOTES = 10  # limit on notes; unreadable pictures without a note are still counted


class OpenPictures(SteppingSource):
    """One frame per picture. ``Frame.index`` also counts unreadable pictures."""

    decoder = "opencv"

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
        self._names = _make_output_names(paths)
        self.pts = -1
        self.left_out = ""  # reported at the end, after the notes on single pictures
        # A note without its numbers -> (first picture with this note, full note), number of other
        # pictures with this note, index in ``notes``.
        self._noted: dict[str, tuple[tuple[str, str], int, int]] = {}
        # Pictures decoded or being decoded, the next one first.
        self._ahead: deque[tuple[int, Pending[Read]]] = deque()
        self._crew: Crew | None = None
        self._reduced: Counter[int] = Counter()  # how many pictures were reduced, by divisor
        self._first, first = self._find_first(spec)
        self._first_picture: Image | Reduced | None = first
        self._bytes = pixels_of(first).nbytes  # size of the last picture
        height, width = size_of(first)
        self.info = SourceInfo(
            path=str(spec),
            kind="pictures",
            width=width,
            height=height,
            fps=Fraction(1),
            time_base=Fraction(1),
            frames_declared=len(paths),
            duration_s=float(len(paths)),
            codec=os.path.splitext(paths[self._first])[1].lstrip(".").lower(),
        )
        if choice.at_once > 1 and len(paths) > self._first + stride and frames != 1:
            from detector.core.timeline.crew import Crew

            self._crew = Crew("picture", choice.at_once)

    def _find_first(self, spec: str) -> tuple[int, Image | Reduced]:
        for index in range(0, len(self._paths), self._stride):
            picture = self._read_noted(index)
            if picture is not None:
                return index, picture
        if len(self._paths) == 1:
            if why := _why_unread(self._paths[0]):
                remedy = "make it smaller" if "pixels" in why else "write it again"
                remedy = "save it as 8-bit RGB" if "TIFF" in why else remedy
                remedy = "convert it: heif-convert IN.heic OUT.jpg" if "tiles" in why else remedy
                raise SourceError(f"{spec}: {why}; {remedy}")
            raise SourceError(
                f"{spec}: cannot be read as a picture; replace it (does a viewer open it?)"
            )
        raise SourceError(
            f"{spec}: none of its {counted(len(self._paths), 'picture')} can be read; check that a "
            "viewer opens them"
        )

    def grab(self) -> bool:
        self.pts += 1
        if self.pts < len(self._paths):
            return True
        self.finish_at_limit()
        return False

    def finish_at_limit(self) -> None:
        if self.left_out:
            self.notes.append(f"{self.info.path}: {self.left_out}")
        self.left_out = ""
        for factor, count in sorted(self._reduced.items()):
            self.notes.append(note_reduced(counted(count, "picture"), factor))
        self._reduced.clear()

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        """Return the picture. ``into`` is not used: cv2 decodes into its own memory."""
        path = self._paths[index]
        if index == self._first:
            picture, self._first_picture = self._first_picture, None
        else:
            picture = self._read_noted(index)
        if picture is None:
            self.counts.bad += 1
            if len(self.notes) < MAX_NOTES:
                why = _why_unread(path) or "cannot be read as a picture"
                self.notes.append(f"{path}: {why}, skipped")
            return None
        if kind_of_name(path) != PICTURE:
            self._add_note(path, "its name is not that of a picture, but it holds one")
        from detector.core.sources._tiff import read_taken

        frame = Frame(index, index, float(index), pixels_of(picture), path, name=self._names[index])
        frame.taken = read_taken(path)
        if isinstance(picture, Reduced):
            self._reduced[picture.factor] += 1
            frame.reduced = picture
        return frame

    def _take(self, index: int) -> Read:
        """Return a picture that was decoded ahead, and start decoding the following ones."""
        if self._crew is None:
            return read_with_note(self._paths[index], self._choice)
        while self._ahead and self._ahead[0][0] < index:
            self._ahead.popleft()
        at_once = self._choice.at_once
        most = 1 + max(1, min(2 * at_once, AHEAD_BYTES // self._bytes))
        if self._frames is not None:
            most = min(most, self._frames - self._handed_out)
        begin = self._ahead[-1][0] + self._stride if self._ahead else index
        for following in range(begin, len(self._paths), self._stride):
            if len(self._ahead) >= most:
                break
            work = partial(read_with_note, self._paths[following], self._choice)
            self._ahead.append((following, self._crew.submit(work)))
        picture, note = self._ahead.popleft()[1].result()
        if picture is not None:
            self._bytes = pixels_of(picture).nbytes
        return picture, note

    def _read_noted(self, index: int) -> Image | Reduced | None:
        path, (picture, note) = self._paths[index], self._take(index)
        if picture is not None and (note := note or self._choice.describe_grey(None)):
            self._add_note(path, note)
        return picture

    def _add_note(self, path: str, note: str) -> None:
        """Add a note; notes that differ only in numbers are merged."""
        kind = re.sub(r"[\d.]+ to [\d.]+", "", note)
        first, others, at = self._noted.get(kind, ((path, note), -1, len(self.notes)))
        if others < 0 and len(self.notes) >= MAX_NOTES:
            return
        self._noted[kind] = first, others + 1, at
        more = f" (and {counted(others + 1, 'other')})" if others >= 0 else ""
        self.notes[at : at + 1] = [f"{first[0]}{more}: {first[1]}"]

    def close(self) -> None:
        super().close()
        self._ahead.clear()
        if self._crew is not None:
            self._crew.close()
            self._crew = None
        self._first_picture = None


def _make_output_names(paths: Sequence[str]) -> list[str]:
    """Return each file's name, or its path below the common folder if files share the name."""
    names = [os.path.basename(path) for path in paths]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    if not repeated:
        return names
    whole = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in whole])
    return [
        os.path.relpath(path, common) if name in repeated else name
        for path, name in zip(whole, names, strict=True)
    ]


def read_picture(path: str) -> Image | None:
    """Return u8 BGR [h, w, 3], turned upright by its EXIF; None if it cannot be read."""
    picture = read_with_note(path)[0]
    return None if picture is None else pixels_of(picture)


def pixels_of(picture: Image | Reduced) -> Image:
    return picture.pixels if isinstance(picture, Reduced) else picture


def read_size(path: str) -> tuple[int, int] | None:
    """Return the displayed width and height; None if the picture cannot be read."""
    from detector.core.sources._picture_size import claimed_size

    with suppress(OSError), open(name_to_open(path), "rb") as file:
        head = file.read(64 << 10)
        is_plain = head.startswith(JPEG) and b"Exif\0\0" not in head  # not rotated
        if is_plain and (size := claimed_size(head)) is not None:
            return size
    image = read_picture(path)
    return None if image is None else (image.shape[1], image.shape[0])


def read_with_note(path: str, choice: Choice = ANY) -> Read:
    """Read a picture with the options ``choice``; also return a note on its conversion, or ""."""
    try:
        if path.lower().endswith(FFMPEG_PICTURES):
            return _decode_with_ffmpeg(path, choice)
        # numpy reads files whose names cv2.imread cannot handle.
        data = np.fromfile(name_to_open(path), np.uint8)
        decoded = _decode(data, choice)
        if decoded[0] is None and data[4:8].tobytes() == b"ftyp":  # a HEIF file with another suffix
            decoded = _decode_with_ffmpeg(path, choice)
    except (OSError, cv2.error, SourceError):
        return None, ""
    return decoded


def _decode_with_ffmpeg(path: str, choice: Choice) -> tuple[Image | None, str]:
    """Decode a picture as a video of one frame; also return a note. Raises SourceError."""
    from detector.core.sources._heif import DESCRIBED_WITHIN, decode_tiles, read_item
    from detector.core.sources.video._container import probe
    from detector.core.sources.video.av import AvSource

    with open(name_to_open(path), "rb") as file:
        item = read_item(file.read(DESCRIBED_WITHIN), path)
    if item is not None and item.is_ours:
        return decode_tiles(path, item), ""
    video = probe(path, Choice(grey=choice.grey))
    with AvSource(video) as source:
        frame, grey = source.read(), video.grey
        return None if frame is None else frame.image.copy(), grey.note if grey else ""


def _why_unread(path: str) -> str | None:
    """Explain why a picture cannot be read: its size, damage or format; None if unknown."""
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


def _decode(data: NDArray[np.uint8], choice: Choice) -> Read:
    from detector.core.sources._picture_size import why_not_decoded

    if not data.size or why_not_decoded(data.tobytes()):
        return None, ""
    from detector.core.sources._deep import decode_deep

    if (deep := decode_deep(data, choice.grey)) is not None:
        return deep
    if choice.reduce is not None and (reduced := _decode_reduced(data, choice)) is not None:
        return reduced, _describe_unused(data[:FIRST_JPEG_WITHIN].tobytes())
    image = cv2.imdecode(data, cv2.IMREAD_COLOR)
    if image is not None and data[4:8].tobytes() == b"ftyp":
        from detector.core.sources._heif import DESCRIBED_WITHIN, read_item, turn

        item = read_item(data[:DESCRIBED_WITHIN].tobytes(), "AVIF")
        if item is not None and item.is_ours:
            return None, ""
        image = image if item is None else turn(image, item.turns)
    return image, _describe_unused(data[:FIRST_JPEG_WITHIN].tobytes())


def _decode_reduced(data: NDArray[np.uint8], choice: Choice) -> Reduced | None:
    """Decode a JPEG fast at a reduced size; None for other formats, or if full size is needed."""
    from detector.core.sources._picture_size import claimed_size

    if data[:2].tobytes() != JPEG or (size := claimed_size(data.tobytes())) is None:
        return None
    factor = choice.find_reduction(*size)  # the picture may be rotated by its EXIF
    if factor not in REDUCED:
        return None
    pixels = cv2.imdecode(data, REDUCED[factor])
    if pixels is None:
        return None
    width, height = (-(-side // factor) for side in size)
    if pixels.shape[:2] == (height, width) and (width != height or size[0] == size[1]):
        return Reduced(np.asarray(pixels), factor, *size)
    if pixels.shape[:2] == (width, height) and width != height:
        return Reduced(np.asarray(pixels), factor, *size[::-1])
    return None


def _describe_unused(data: bytes) -> str:
    """Describe the further pictures of a file, which are not read; "" if it has only one."""
    is_animated = data[12:16] == b"VP8X" and data[20] & 2
    if is_animated or b"acTL" in data[:HEAD_BYTES].partition(b"IDAT")[0]:
        return "an animation: only its first picture is used; convert it to a video to use all"
    note = "a stream of pictures: only the first is used; to use all, give the file as a source"
    return note if holds_jpegs(data) else ""
