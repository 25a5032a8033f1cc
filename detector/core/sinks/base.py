"""The contract of a sink: frames and their detections in; one whole file or folder out, or none.

A sink is a class ``NAMESink`` in ``sinks/NAME.py``, whose class attributes declare all that is
asked before one is opened. It should import a heavy library (PyAV) only where it opens its output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from detector.core.types import Detections, Frame, Image, SourceInfo

DRAWN = ("bgr", "yuv420p")  # ``Sink.pictures`` of the sinks that boxes are drawn for


class Sink:
    """``path``: the final path; ``notes``: sentences for the session, complete after ``close``."""

    # "video", "jsonl", ...: in --save, in the summary, and as the file's name here
    name: ClassVar[str]
    # Endings of the output's name. The first is the default; "" or "-labels" means a folder. A
    # file that is given with -o is this sink's when it ends in any of them.
    suffixes: ClassVar[tuple[str, ...]]
    # The picture that it needs: "none", "plain", "bgr" or "yuv420p". If any sink needs one of the
    # last two, boxes are drawn into it first, and --no-video leaves that sink out. "yuv420p" is
    # ``frame.picture``, planes or BGR; "bgr" is ``frame.image``. "plain" is BGR before that, with
    # the objects of --blur pixelated: ``see`` gets it.
    pictures: ClassVar[str] = "none"
    one_picture: ClassVar[tuple[str, ...]] = ()  # the ``suffixes`` that hold only one picture
    ending: ClassVar[str] = "-detected"  # of a default name: IN + ending + suffix
    kinds: ClassVar[tuple[str, ...]] = ("video", "pictures")  # of sources that it can write
    alone: ClassVar[bool] = True  # whether -o FILE with its suffix writes only FILE
    # Sinks are opened, written and closed by ascending ``order``. Cheap rows come first: the disk
    # then fills up under the video, and the rows of all of its frames are there.
    order: ClassVar[int] = 0
    # Keywords of __init__: of config.output, or "remark", "style" (how boxes look), "program",
    # "names" (``FrameNames``, which the sinks of a source share).
    options: ClassVar[tuple[str, ...]] = ()
    # Modules that opening and writing import at their first use.
    imports: ClassVar[tuple[str, ...]] = ()
    # Its folder in a dataset, where outputs that have one are saved together (IN-dataset/).
    dataset: ClassVar[str] = ""
    # It shows the source's own pictures, with boxes: --blur and --no-video contradict it.
    untouched: ClassVar[bool] = False
    needs: ClassVar[str] = ""  # the option without which it has nothing to write

    # Options that it needs, and their values if the user gave none.
    implies: ClassVar[Mapping[str, Any]] = {}

    path: Path
    notes: list[str]
    for_session: bytes = b""  # JSONL that the session keeps of it (NAME/0.jsonl); after ``close``
    beside: Sequence[Path] = ()  # other files that ``close`` wrote

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.notes = []

    @classmethod
    def check_options(cls, suffix: str, options: Mapping[str, Any]) -> None:
        """Raise UsageError for options (of config.output) that mean nothing for this suffix."""

    @classmethod
    def check_source(cls, spec: str) -> None:
        """Raise UsageError for a source (a file) that this output can never be made of."""

    def open(self, info: SourceInfo) -> None:
        """Creates the temporary file. Raises OutputError where the target cannot be written."""
        raise NotImplementedError

    def see(self, image: Image, detections: Detections) -> None:
        """Take what it needs of a plain picture with detections, just before its ``write``."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        """Take one frame, in order. Must not keep its picture: the buffer is used again."""
        raise NotImplementedError

    def close(self) -> Path | None:
        """Finishes, checks, fsyncs and renames the file; returns its path, None if nothing was to
        be written. A second call only returns the path."""
        raise NotImplementedError

    def abort(self) -> Path | None:
        """After a failure: keep what is whole under the temporary name; return that, if any."""
        raise NotImplementedError


class _OnlyDetections(Sink):
    """--only-detections, for sinks that have no rule of their own: they get those frames alone."""

    def see(self, image: Image, detections: Detections) -> None:
        if len(detections):
            super().see(image, detections)

    def write(self, frame: Frame, detections: Detections) -> None:
        if len(detections):
            super().write(frame, detections)


def only_detections(sink: type[Sink]) -> type[Sink]:
    """Return the same sink, which leaves out frames without detections."""
    return type(sink.__name__, (_OnlyDetections, sink), {})
