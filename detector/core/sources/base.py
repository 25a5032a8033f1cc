"""The base class of sources, which return frames. Each is a ``NAMESource`` in ``NAME.py``."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypedDict

from detector.core.errors import SourceError, UsageError
from detector.core.types import Background, Frame, Image, ReadCounts, SourceInfo

if TYPE_CHECKING:
    from detector.core.timeline.spans import OffTrack, ThreadTrack


class GreyRange(NamedTuple):
    """The two grey values that become black and white. ``note``: the reason, for the user."""

    low: float
    high: float
    note: str = ""


AUTO, FULL = "auto", "full"
NO_GREY = "it has no grey samples of more than 8 bits, so --grey-range has no effect"
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)[-:](-?\d+(?:\.\d+)?)")


def parse_grey_range(text: str) -> str | GreyRange:
    """Parse ``--grey-range``: AUTO, FULL, or the values for black and white. Raises UsageError."""
    if text in (AUTO, FULL):
        return text
    if (match := _RANGE.fullmatch(text)) and float(match[1]) < float(match[2]):
        note = f"by --grey-range, value {match[1]} was mapped to black and {match[2]} to white"
        return GreyRange(float(match[1]), float(match[2]), note)
    raise UsageError(
        f'--grey-range {text!r}: give "auto", "full", or the values for black and for white, such '
        "as 29300-31500"
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """Options for reading. ``track``: number of the video track, from 1; None: the default track,
    or else the largest. ``rate``: frame rate of a raw stream. ``grey``: value of ``--grey-range``.
    ``reduce``: returns the divisor (1, 2, 4, 8) by which a picture of a given width and height may
    be reduced. ``at_once``: how many pictures are decoded concurrently."""

    track: int | None = None
    rate: Fraction | None = None
    grey: str | GreyRange = AUTO
    reduce: Callable[[int, int], int] | None = None
    at_once: int = 1

    def find_reduction(self, width: int, height: int) -> int:
        """Return a divisor that ``reduce`` allows for a picture, even if it is rotated."""
        if self.reduce is None:
            return 1
        return min(self.reduce(width, height), self.reduce(height, width))

    def describe_grey(self, range: GreyRange | None) -> str:
        """Return the note on a source's grey ``range``; "" if there is nothing to report."""
        if range is not None:
            return range.note
        return NO_GREY if isinstance(self.grey, GreyRange) else ""

    def refuse_tracks(self, what: str) -> None:
        """Raise UsageError if a track or a rate is set."""
        if self.track is not None or self.rate is not None:
            flag = "--rate" if self.track is None else "--video-track"
            raise UsageError(f"{what}: {flag} is for videos, and this is not one; omit it")


ANY = Choice()


def note_reduced(what: str, part: int) -> Background:
    return Background(
        f"{what} decoded to 1/{part} of the width and height, since no output needs more "
        "(--full-decode turns this off)"
    )


# The usual rounded spelling of an NTSC rate -> the exact rate.
NTSC = {
    "23.976": Fraction(24000, 1001),
    "29.97": Fraction(30000, 1001),
    "59.94": Fraction(60000, 1001),
}
MOST_RATE = 1000


def parse_rate(text: str) -> Fraction:
    """Parse ``--rate``, a frame rate. Raises UsageError."""
    try:
        rate = NTSC.get(text) or Fraction(text)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not 0 < rate <= MOST_RATE:
        raise UsageError(
            f"--rate {text!r}: give a frame rate above 0 and at most {MOST_RATE}, such as 30, "
            "29.97 or 30000/1001"
        )
    return rate


class OpenOptions(TypedDict, total=False):
    """Keyword arguments of ``open``, with the defaults of ``sources.open``."""

    decoder: str
    stride: int
    frames: int | None
    pixels: str
    choice: Choice


class Source:
    """The frames of a file, a folder, a stream or cameras. Iterate over it in a ``with`` block.

    ``info`` describes the source. Unreadable frames are counted in ``counts`` and skipped.
    SourceError is raised only if the whole source cannot be read.

        >>> import cv2, numpy as np
        >>> from detector.core import sources
        >>> cv2.imwrite("a.png", np.zeros((480, 640, 3), np.uint8))
        True
        >>> with sources.open("a.png") as source:
        ...     print(source.info.width, [frame.name for frame in source])
        640 ['a.png']
    """

    # The possible types of Frame.picture: "bgr", "yuv420p". If there are several, ``open`` has an
    # argument ``pixels``, the requested type. The attribute ``pixels`` is the actual type.
    gives: ClassVar[tuple[str, ...]] = ("bgr",)
    # Whether ``open`` has an argument ``choice``.
    has_tracks: ClassVar[bool] = False
    # ``claims`` is called by ascending ``order``. VideoSource comes last: it claims every remaining
    # file. A source is imported only if its regular expression ``form`` matches the whole spec,
    # ignoring case. ``order`` and ``form`` must be literals, to be read without an import.
    order: ClassVar[int] = 0
    form: ClassVar[str] = ".*"

    # Whether frames arrive in real time, as from a camera. Such a source implements ``arrive``
    # (see ``loop.parts.Parts``).
    arrives: ClassVar[bool] = False

    kind: ClassVar[str] = "video"  # "video" or "pictures"; decides the default outputs
    # Modules that ``open`` and reading import on first use.
    imports: ClassVar[tuple[str, ...]] = ()

    info: SourceInfo
    counts: ReadCounts
    decoder: str = ""  # the reader: "opencv", "av", "opencv (28 frames) then av", ...
    pixels: str = "bgr"  # "bgr", or "yuv420p", where single frames may still be BGR
    why_no_planes: str = ""  # why a video returns BGR although planes were requested
    notes: list[str]  # messages for the session

    @property
    def damaged(self) -> bool:
        """Whether some part of the source could not be read."""
        return self.counts.damaged

    @classmethod
    def claims(cls, spec: str) -> bool:
        """Return whether this source reads ``spec``, judging by name and file. Never raises."""
        raise NotImplementedError

    @classmethod
    def check_spec(cls, spec: str) -> None:
        """Raise SourceError or UsageError if a claimed spec cannot be read. Reads no frame."""

    @classmethod
    def open(cls, spec: str, *, decoder: str, stride: int, frames: int | None) -> Source:
        """Open a claimed spec and find its first frame. Raises SourceError."""
        raise NotImplementedError

    @classmethod
    def open_arriving(cls, spec: str, reading: Any) -> Source:
        """Open a source that ``arrives``, with a ``SourceReading``. Raises the same as ``open``."""
        raise NotImplementedError

    def arrive(self, track: ThreadTrack | OffTrack, index: int, row: int) -> bool:
        """Wait for a picture; see ``loop.parts.LoopHooks.arrive``."""
        raise NotImplementedError

    def restrict(self, start_s: Fraction | None, duration_s: Fraction | None) -> None:
        """Skip the first ``start_s`` seconds, and read only ``duration_s`` seconds. Call it before
        ``read``. Raises SourceError if no frame remains, UsageError if frames have no time."""
        raise UsageError(
            f"{self.info.path}: --start and --duration are for sources with a clock; omit them"
        )

    def read(self, into: Image | None = None) -> Frame | None:
        """Return the next frame, or None at the end and in all later calls.

        The picture may be stored in ``into`` if the shape fits. Raises SourceError only if the rest
        of the source is unreadable.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self.read()) is not None:
            yield frame

    def close(self) -> None:
        """Release files and decoders. May be called twice."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SteppingSource(Source):
    """A source that implements ``grab`` and ``retrieve``, like cv2.VideoCapture. Frames skipped by
    ``stride`` are not converted."""

    pts: int  # time stamp of the last grabbed picture

    def __init__(self, stride: int = 1, frames: int | None = None) -> None:
        self.counts = ReadCounts()
        self.notes = []
        self._stride = stride
        self._frames = frames  # limit of frames returned; None: all
        self._next = 0  # index of the next picture in the source
        self._handed_out = 0
        self._end_s: Fraction | None = None  # frames from this time on are beyond ``duration_s``
        self._held = False  # the next picture has already been grabbed
        self._is_past_limit = False  # the last grabbed picture is the first beyond ``duration_s``
        self._closed = False

    def grab(self) -> bool:
        """Move to the next picture. Return False at the end and in all later calls."""
        raise NotImplementedError

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        """Return the last grabbed picture as frame ``index``. If it is unreadable, return None."""
        raise NotImplementedError

    def grabbed_pts(self) -> int:
        return self.pts

    def finish_at_limit(self) -> None:
        """Finish reading after the last requested frame. The rest of the source stays unread."""

    def hold_first(self) -> bool:
        """Grab the first picture and keep it for the first read. Return False if there is none."""
        self._held = self.grab()
        return self._held

    def seek(self, start_s: Fraction) -> int | None:
        """Grab a picture at or before ``start_s`` and return its number. Return None if seeking
        might change the pictures that follow."""
        return None

    def restrict(self, start_s: Fraction | None, duration_s: Fraction | None) -> None:
        """Limit the frames by time; they keep their numbers in the source."""
        begins_s = self.info.start_pts * self.info.time_base
        if start_s is not None and begins_s:
            self.notes.append(
                f"the source's clock begins at {float(begins_s):.3f} s: --start "
                f"{float(start_s):.3f} s is {float(begins_s + start_s):.3f} s on that clock, as in "
                'the column "time_s"'
            )
            start_s += begins_s
        if start_s is not None and (number := self.seek(start_s)) is not None:
            self._next, self._held = number, True
        at = None
        while self._advance():
            at = self._grabbed_s()
            if start_s is None or at >= start_s:
                self._held = True
                break
            self._next += 1
        if not self._held:
            ends = "it has no frame"
            if at is not None:
                ends = f"its last frame is at {float(at - begins_s):.3f} s"
                ends += f" from its beginning ({float(at):.3f} s on its clock)" if begins_s else ""
            raise SourceError(f"{self.info.path}: {ends}, before --start; use an earlier --start")
        if duration_s is not None and at is not None:
            self._end_s = (at if start_s is None else start_s) + duration_s
            if at >= self._end_s:
                raise SourceError(
                    f"{self.info.path}: no frame in the --duration after --start, the next is at "
                    f"{float(at - begins_s):.3f} s; use a longer --duration"
                )

    def _grabbed_s(self) -> Fraction:
        return self.grabbed_pts() * self.info.time_base

    def read(self, into: Image | None = None) -> Frame | None:
        while self._handed_out != self._frames and not self._closed and self._advance():
            if self._end_s is not None and self._grabbed_s() >= self._end_s:
                self._frames = self._handed_out  # so that later calls return None, too
                self._is_past_limit = True
                break
            index, self._next = self._next, self._next + 1
            if index % self._stride:
                self.counts.skipped += 1
            elif (frame := self.retrieve(index, into)) is not None:
                self._handed_out += 1
                return frame
        if self._handed_out == self._frames and not self._closed:
            self.finish_at_limit()
        return None

    def read_past_limit(self) -> Frame | None:
        """Return the first picture beyond ``duration_s``. Call it once, after the last frame."""
        if not self._is_past_limit or self._closed:
            return None
        self._is_past_limit = False
        return self.retrieve(self._next, None)

    def _advance(self) -> bool:
        if self._held:
            self._held = False
            return True
        return self.grab()

    def close(self) -> None:
        self._closed = True


def check_file(spec: str) -> None:
    """Raise SourceError if ``spec`` is not a regular file, or cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(spec).st_mode):
            raise SourceError(
                f"{spec}: not a regular file (a device or a pipe); save it to a file, or pipe it "
                f"in: detect-video - < {spec}"
            )
        with open(spec, "rb"):
            pass
    except OSError as error:
        raise SourceError(
            f"{spec}: cannot be read ({error.strerror}); check its permissions: ls -l {spec}"
        ) from error
