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

    ``decoder`` names who reads ("opencv", "av", "opencv then av", ...); ``notes`` are sentences for the session.
    ``ended_early`` is True when the data stopped before the container said it would, or was damaged.
    """

    info: SourceInfo
    counts: ReadCounts
    decoder: str = ""
    notes: list[str]
    ended_early: bool = False

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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        self.close()
