"""The contract of a source: frames in order, and what it knows of itself.

A source is a class ``NAMESource`` in ``sources/NAME.py``. It declares which specs it claims and
which pictures it gives, so that a new source is that one file (and its test).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar

from detector.errors import SourceError
from detector.types import Frame, Image, SourceInfo


@dataclass(slots=True)
class ReadCounts:
    bad: int = 0  # packets or files that were refused
    corrupt: int = 0  # frames that decoded but are flagged corrupt
    skipped: int = 0  # frames that --stride dropped


class Source:
    """Iterable of Frame. A bad frame is counted in ``counts`` and skipped; it raises nothing."""

    gives: ClassVar[str] = "bgr"  # the pixels of Frame.image; "yuv420p" is reserved
    # Sources are asked in ascending order whether they claim a spec. Video files come last: that
    # source takes every file that nobody else knows.
    order: ClassVar[int] = 0

    info: SourceInfo
    counts: ReadCounts
    decoder: str = ""  # who reads: "opencv", "av", "opencv (28 frames) then av", ...
    notes: list[str]  # sentences for the session
    ended_early: bool = False  # the data stopped before the container said it would, or was damaged

    @property
    def damaged(self) -> bool:
        """Whether a part of the source was lost.

        The run finishes and exits with EXIT_DAMAGED (7).
        """
        return self.ended_early or self.counts.bad > 0

    @classmethod
    def claims(cls, spec: str) -> bool:
        """Whether this source reads ``spec``, by its name and the file system. Never raises."""
        raise NotImplementedError

    @classmethod
    def open(cls, spec: str, *, decoder: str, stride: int, frames: int | None) -> Source:
        """The source of a spec that it claims, with its first frame found. Raises SourceError."""
        raise NotImplementedError

    def read(self, into: Image | None = None) -> Frame | None:
        """The next frame, or None at the end (and ever after).

        ``into`` is a buffer that the frame may be decoded into when its shape fits. The frame's
        image is ``into`` itself or a new array. Raises SourceError only for what ends the whole
        source.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self.read()) is not None:
            yield frame

    def close(self) -> None:
        """Releases files and decoders. May be called twice."""

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self.close()


class SteppingSource(Source):
    """A source in two steps, like cv2's: ``grab`` moves on, ``retrieve`` makes the picture.

    It applies stride and limit for all readers. A frame that the stride drops is never converted.
    """

    def __init__(self, stride: int = 1, frames: int | None = None) -> None:
        self.counts = ReadCounts()
        self.notes = []
        self._stride = stride
        self._frames = frames  # hand out at most so many; None: all
        self._next = 0  # index of the next picture in the source
        self._handed_out = 0
        self._held = False  # a picture is grabbed already
        self._closed = False

    def grab(self) -> bool:
        """Moves to the next picture. False at the end, and ever after."""
        raise NotImplementedError

    def retrieve(self, index: int, into: Image | None) -> Frame | None:
        """The picture that was grabbed last, as frame ``index``.

        None where it turned out to be unreadable; it is then counted.
        """
        raise NotImplementedError

    def hold_first(self) -> bool:
        """Grabs the first picture and keeps it for the first read. False where there is none."""
        self._held = self.grab()
        return self._held

    def read(self, into: Image | None = None) -> Frame | None:
        while self._handed_out != self._frames and not self._closed and self._advance():
            index, self._next = self._next, self._next + 1
            if index % self._stride:
                self.counts.skipped += 1
            elif (frame := self.retrieve(index, into)) is not None:
                self._handed_out += 1
                return frame
        return None

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
                f"{spec}: not a regular file (a device or a pipe); save it to a file first"
            )
        with open(spec, "rb"):
            pass
    except OSError as error:
        raise SourceError(
            f"{spec}: cannot be read ({error.strerror}); check its permissions: ls -l"
        ) from error
