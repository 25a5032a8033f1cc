"""The contract of a sink: rows or pictures in, one whole file out, or none.

A sink writes to a temporary name beside its target (``x.partial.mp4`` for ``x.mp4``), and renames on ``close``. A
lock on the temporary file refuses a second writer of the same target.
"""

from __future__ import annotations

from pathlib import Path

from detector.types import Detections, Frame, SourceInfo


class Sink:
    """``name`` is the key of the output ("video", "jsonl", ...); ``path`` the final path; ``notes`` what to tell."""

    name: str
    path: Path
    notes: list[str]

    def open(self, info: SourceInfo) -> None:
        """Creates the temporary file. Raises OutputError where the target cannot be written."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        """Takes one frame, in order. May keep nothing of ``frame.image``: its buffer is used again."""
        raise NotImplementedError

    def close(self) -> Path:
        """Finishes, checks, fsyncs and renames the file; returns its final path."""
        raise NotImplementedError

    def abort(self) -> Path | None:
        """After a failure: keeps what is whole under the temporary name and returns that path, or removes it and
        returns None. The final name is not touched. May be called after a failed ``close``; never raises."""
        raise NotImplementedError
