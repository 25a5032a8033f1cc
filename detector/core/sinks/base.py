"""The contract of a sink: frames and their detections in; one whole file or folder out, or none.

A sink is a class ``NAMESink`` in ``sinks/NAME.py``. Its attributes declare what is needed before
one is opened. It should import heavy libraries (PyAV) only on opening.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from detector.core.types import Detections, Frame, Image, SourceInfo

DRAWN = ("bgr", "yuv420p")  # ``Sink.pictures`` of the sinks that need boxes drawn


class Sink:
    """One output: ``open``, ``write`` each frame in order, then ``close``, or ``abort``.

    ``path``: the final path; ``notes``: sentences for the session, complete after ``close``. Raises
    OutputError if it cannot be written.

        >>> from detector.core import sinks
        >>> [sink.name for sink in sinks.defaults("video")], sinks.find("coco").suffixes[0]
        (['jsonl', 'video'], '.coco.json')
    """

    # "video", "jsonl", ...: in --save, in the summary, and as the file's name here
    name: ClassVar[str]
    # Suffixes of the output's name. The first is the default; "" or "-labels" means a folder. An -o
    # file that ends in any of them belongs to this sink.
    suffixes: ClassVar[tuple[str, ...]]
    # The picture that it needs: "none", "plain", "bgr" or "yuv420p". For the last two, boxes are
    # drawn first, and --no-video skips the sink. "yuv420p" is ``frame.picture``, planes or BGR;
    # "bgr" is ``frame.image``. "plain" is BGR before drawing, with the objects of --blur pixelated,
    # and goes to ``see``.
    pictures: ClassVar[str] = "none"
    one_picture: ClassVar[tuple[str, ...]] = ()  # the ``suffixes`` that hold only one picture
    ending: ClassVar[str] = "-detected"  # default name: IN + ending + suffix
    kinds: ClassVar[tuple[str, ...]] = ("video", "pictures")  # of sources that it can write
    alone: ClassVar[bool] = True  # whether -o FILE with its suffix writes only FILE
    # Sinks are opened, written and closed by ascending ``order``. Cheap rows come first: if the
    # video fills the disk, the rows of all its frames are already there.
    order: ClassVar[int] = 0
    # Keywords of __init__: options of config.output, or "remark", "style" (how boxes look),
    # "program", "names" (``FrameNames``, shared by the sinks of a source).
    options: ClassVar[tuple[str, ...]] = ()
    # Modules that opening and writing import on first use.
    imports: ClassVar[tuple[str, ...]] = ()
    # Its folder in a dataset, if outputs of one are saved together (IN-dataset/).
    dataset: ClassVar[str] = ""
    # Whether it shows the source's own pixels with boxes: --blur and --no-video contradict that.
    untouched: ClassVar[bool] = False
    needs: ClassVar[str] = ""  # the option without which it would be empty

    # Options that it needs, and their default values.
    implies: ClassVar[Mapping[str, Any]] = {}

    path: Path
    notes: list[str]
    for_session: bytes = b""  # JSONL that the session stores of it (NAME/0.jsonl); after ``close``
    beside: Sequence[Path] = ()  # other files that ``close`` wrote

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.notes = []

    @classmethod
    def check_options(cls, suffix: str, options: Mapping[str, Any]) -> None:
        """Raise UsageError for options (of config.output) that do not apply to this suffix."""

    @classmethod
    def check_source(cls, spec: str) -> None:
        """Raise UsageError for a source (a file) that this output cannot be made from."""

    def open(self, info: SourceInfo) -> None:
        """Create the temporary file. Raises OutputError if the target cannot be written."""
        raise NotImplementedError

    def see(self, image: Image, detections: Detections) -> None:
        """Take what it needs of a plain picture with detections, just before its ``write``."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        """Take one frame, in order. Must not keep its picture: the buffer is reused."""
        raise NotImplementedError

    def close(self) -> Path | None:
        """Finish, check, fsync and rename the file; return its path, None if nothing was to be
        written. A second call only returns the path."""
        raise NotImplementedError

    def abort(self) -> Path | None:
        """Keep what is whole after a failure, under the temporary name; return that, if any."""
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
    """Return a subclass of the sink that skips frames without detections."""
    return type(sink.__name__, (_OnlyDetections, sink), {})
