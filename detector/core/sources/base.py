"""The contract of a source, a class ``NAMESource`` in ``sources/NAME.py``: frames in order."""

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
    from detector.core.timeline import OffTrack, Track


class GreyRange(NamedTuple):
    """Grey samples that are black and white. ``said``: why, in words."""

    low: float
    high: float
    said: str = ""


AUTO, FULL = "auto", "full"
NO_GREY = "it has no grey samples of more than 8 bits, so --grey-range has no effect"
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)[-:](-?\d+(?:\.\d+)?)")


def parse_grey_range(text: str) -> str | GreyRange:
    """``--grey-range``: AUTO, FULL, or what is black and what is white. Raises UsageError."""
    if text in (AUTO, FULL):
        return text
    if (found := _RANGE.fullmatch(text)) and float(found[1]) < float(found[2]):
        said = f"{found[1]} was mapped to black and {found[2]} to white, by --grey-range"
        return GreyRange(float(found[1]), float(found[2]), said)
    raise UsageError(
        f"--grey-range {text!r}: give auto, full, or the samples that are black and white, such as "
        "29300-31500"
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """``track``: number among the video tracks, from 1; None: the default one, else the largest.
    ``rate``: frames a second of a raw stream. ``grey``: of ``--grey-range``. ``reduce``: width and
    height of a picture -> to which part of them it may be decoded (1, 2, 4, 8)."""

    track: int | None = None
    rate: Fraction | None = None
    grey: str | GreyRange = AUTO
    reduce: Callable[[int, int], int] | None = None
    at_once: int = 1

    def part_of(self, width: int, height: int) -> int:
        """``reduce`` for a picture that may be turned."""
        if self.reduce is None:
            return 1
        return min(self.reduce(width, height), self.reduce(height, width))

    def tell_grey(self, found: GreyRange | None) -> str:
        """A note on what was done to grey samples; "" for nothing."""
        if found is not None:
            return found.said
        return NO_GREY if isinstance(self.grey, GreyRange) else ""

    def refuse_tracks(self, what: str) -> None:
        """Raises UsageError where it is about more than ``grey``."""
        if self.track is not None or self.rate is not None:
            flag = "--rate" if self.track is None else "--video-track"
            raise UsageError(f"{what}: {flag} is for videos, and this is not one; omit it")


ANY = Choice()


def note_of_reduced(what: str, part: int) -> Background:
    """Of pictures that were decoded to 1/``part``."""
    return Background(
        f"{what} decoded to 1/{part} of the width and height, as no output shows them "
        "(--full-decode turns this off)"
    )


# What people write for the rates of NTSC, which are no decimal numbers.
NTSC = {
    "23.976": Fraction(24000, 1001),
    "29.97": Fraction(30000, 1001),
    "59.94": Fraction(60000, 1001),
}
MOST_RATE = 1000


def parse_rate(text: str) -> Fraction:
    """Frames a second of ``--rate``. Raises UsageError."""
    try:
        rate = NTSC.get(text) or Fraction(text)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not 0 < rate <= MOST_RATE:
        raise UsageError(
            f"--rate {text!r} is not a frame rate above 0 and at most {MOST_RATE}; "
            "give 30, 29.97 or 30000/1001"
        )
    return rate


class How(TypedDict, total=False):
    """Keywords of ``open``. Their defaults are those of ``sources.open``."""

    decoder: str
    stride: int
    frames: int | None
    pixels: str
    choice: Choice


class Source:
    """Iterable of Frame. A bad frame is counted in ``counts`` and skipped; it raises nothing."""

    # What Frame.picture may be: "bgr", "yuv420p". The ``open`` of a source that gives more than
    # "bgr" has an argument ``pixels``, what is wanted of it. ``pixels`` here is what it gives.
    gives: ClassVar[tuple[str, ...]] = ("bgr",)
    # Whether its ``open`` has an argument ``choice``: which track is read, and how fast, and what
    # of grey samples is black and white.
    has_tracks: ClassVar[bool] = False
    # Sources are asked in ascending order whether they claim a spec; video files come last, as that
    # source takes every file that nobody else knows. A spec that ``form`` does not match as a whole
    # (a regular expression, case does not count) imports no source. Both are literals.
    order: ClassVar[int] = 0
    form: ClassVar[str] = ".*"

    # Whether its frames arrive whether or not somebody has time for them: a camera's. Such a source
    # has ``arrive``, as of ``loop.parts.Parts``.
    arrives: ClassVar[bool] = False

    kind: ClassVar[str] = "video"  # or "pictures": whose outputs it mostly has
    # Modules that ``open`` and reading import at their first use.
    imports: ClassVar[tuple[str, ...]] = ()

    info: SourceInfo
    counts: ReadCounts
    decoder: str = ""  # who reads: "opencv", "av", "opencv (28 frames) then av", ...
    pixels: str = "bgr"  # or "yuv420p"; of these, single frames may be BGR all the same
    no_planes: str = ""  # why a video of which planes were wanted gives BGR
    notes: list[str]  # sentences for the session

    @property
    def damaged(self) -> bool:
        """Whether a part of the source was lost, so far."""
        return self.counts.damaged

    @classmethod
    def claims(cls, spec: str) -> bool:
        """Whether this source reads ``spec``, by its name and the file system. Never raises."""
        raise NotImplementedError

    @classmethod
    def check_spec(cls, spec: str) -> None:
        """Raises SourceError or UsageError for a claimed spec, by names and folders alone."""

    @classmethod
    def open(cls, spec: str, *, decoder: str, stride: int, frames: int | None) -> Source:
        """The source of a spec that it claims, with its first frame found. Raises SourceError."""
        raise NotImplementedError

    @classmethod
    def open_arriving(cls, spec: str, reading: Any) -> Source:
        """If it ``arrives``: by a run's ``reading.Reading``. Raises SourceError, UsageError."""
        raise NotImplementedError

    def arrive(self, track: Track | OffTrack, index: int, row: int) -> bool:
        """As ``loop.parts.Parts.arrive``."""
        raise NotImplementedError

    def restrict(self, start_s: Fraction | None, duration_s: Fraction | None) -> None:
        """Limit the frames to ``duration_s`` from ``start_s`` of the source's clock, before
        ``read``. Raises SourceError if no frame is left, UsageError if frames have no time."""
        raise UsageError(
            f"{self.info.path}: --start and --duration are for sources with a clock; omit them"
        )

    def read(self, into: Image | None = None) -> Frame | None:
        """The next frame, or None at the end (and ever after).

        It may be decoded into ``into`` when its shape fits. Raises SourceError only for what ends
        the whole source.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self.read()) is not None:
            yield frame

    def close(self) -> None:
        """Releases files and decoders. May be called twice."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SteppingSource(Source):
    """A source with ``grab`` and ``retrieve``, like cv2's. Skipped frames are never converted."""

    def __init__(self, stride: int = 1, frames: int | None = None) -> None:
        self.counts = ReadCounts()
        self.notes = []
        self._stride = stride
        self._frames = frames  # hand out at most so many; None: all
        self._next = 0  # index of the next picture in the source
        self._handed_out = 0
        self._end_s: Fraction | None = None  # the first time that is not handed out
        self._held = False  # a picture is grabbed already
        self._is_behind = False  # the one that was grabbed last is the first that is left out
        self._closed = False

    def grab(self) -> bool:
        """Moves to the next picture. False at the end, and ever after."""
        raise NotImplementedError

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        """The picture grabbed last, as frame ``index``; None, and counted, if it is unreadable."""
        raise NotImplementedError

    def grabbed_pts(self) -> int:
        """The pts of the picture that was grabbed last."""
        raise NotImplementedError

    def at_limit(self) -> None:
        """``frames`` are handed out, and the rest of the source is left unread."""

    def hold_first(self) -> bool:
        """Grabs the first picture and keeps it for the first read. False where there is none."""
        self._held = self.grab()
        return self._held

    def seek(self, start_s: Fraction) -> int | None:
        """Grabs a picture before ``start_s`` where all that follows is certain to be the same, and
        returns its number; else None."""
        return None

    def restrict(self, start_s: Fraction | None, duration_s: Fraction | None) -> None:
        """Frames before the start are left out; those behind it keep their numbers."""
        begins_s = self.info.start_pts * self.info.time_base
        if start_s is not None and begins_s:
            self.notes.append(
                f"the source's clock begins at {float(begins_s):.3f} s: --start "
                f"{float(start_s):.3f} s is {float(begins_s + start_s):.3f} s on that clock, as in "
                "time_s"
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
                    f"{self.info.path}: no frame in that time, the next is at "
                    f"{float(at - begins_s):.3f} s; use a longer --duration"
                )

    def _grabbed_s(self) -> Fraction:
        return self.grabbed_pts() * self.info.time_base

    def read(self, into: Image | None = None) -> Frame | None:
        while self._handed_out != self._frames and not self._closed and self._advance():
            if self._end_s is not None and self._grabbed_s() >= self._end_s:
                self._frames = self._handed_out  # the end, now and ever after
                self._is_behind = True
                break
            index, self._next = self._next, self._next + 1
            if index % self._stride:
                self.counts.skipped += 1
            elif (frame := self.retrieve(index, into)) is not None:
                self._handed_out += 1
                return frame
        if self._handed_out == self._frames and not self._closed:
            self.at_limit()
        return None

    def read_behind(self) -> Frame | None:
        """Once, behind the last frame: the first picture that ``duration_s`` leaves out."""
        if not self._is_behind or self._closed:
            return None
        self._is_behind = False
        return self.retrieve(self._next, None)

    def _advance(self) -> bool:
        if self._held:
            self._held = False
            return True
        return self.grab()

    def close(self) -> None:
        self._closed = True


def check_file(spec: str) -> None:
    """Raises SourceError where ``spec`` is no regular file, or cannot be read."""
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
