"""The contract of a source: frames in order, and what it knows of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from detector.types import Frame, Image, SourceInfo


@dataclass(slots=True)
class ReadCounts:
    """``bad``: packets or files that were refused. ``corrupt``: frames that decoded but are flagged corrupt.
    ``skipped``: frames that ``--stride`` dropped."""

    bad: int = 0
    corrupt: int = 0
    skipped: int = 0


class Source:
    """Iterable of Frame. A bad frame is counted in ``counts`` and skipped, never raised one by one.

    ``decoder`` names who reads ("opencv", "av", "opencv (28 frames) then av", ...); ``notes`` are sentences for the
    session. ``ended_early`` is True when the data stopped before the container said it would, or was damaged.
    """

    info: SourceInfo
    counts: ReadCounts
    decoder: str = ""
    notes: list[str]
    ended_early: bool = False

    @property
    def damaged(self) -> bool:
        """True when not everything that the source held came out whole."""
        return self.ended_early or self.counts.bad > 0

    def read(self, into: Image | None = None) -> Frame | None:
        """The next frame, or None at the end (and ever after).

        ``into`` is a buffer that the frame may be decoded into when its shape fits; the frame's image may be
        ``into`` itself or a new array. Raises SourceError only for what ends the whole source.
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
    """A source in two steps, as cv2 has them: ``grab`` moves on, ``retrieve`` makes the picture.

    Stride and limit live here, once for all readers, so a frame that the stride drops is never converted.
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
        """The picture that was grabbed last, as frame ``index``. None: it turned out unreadable and was counted."""
        raise NotImplementedError

    def hold_first(self) -> bool:
        """Grabs the first picture and keeps it for the first read: so that open() knows that there is one."""
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
