"""The base class of sinks, which write frames and detections to one complete file or folder.

A sink is a class ``NAMESink`` in ``sinks/NAME.py``, described by class attributes. It should import
heavy libraries (PyAV) only in ``open``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from detector.core.types import Detections, Frame, Image, SourceInfo

DRAWN = ("bgr", "yuv420p")  # values of ``Sink.pictures`` that require drawn boxes


class Sink:
    """One output. Call ``open``, ``write`` for each frame in order, then ``close`` or ``abort``.

    ``path``: the final path. ``notes``: messages for the session, complete after ``close``. Methods
    raise OutputError if they cannot write.

        >>> from detector.core import sinks
        >>> [sink.name for sink in sinks.defaults("video")], sinks.find("coco").suffixes[0]
        (['jsonl', 'video'], '.coco.json')
    """

    name: ClassVar[str]  # name of the module; also used in --save and in the summary
    # Suffixes of the output's name. The first is the default; "" or "-labels" means a folder. With
    # -o FILE, this sink is chosen if FILE's extension (from its last dot: ".json") is one of them.
    suffixes: ClassVar[tuple[str, ...]]
    # The picture that the sink needs, or "none". "plain": BGR, passed to ``see`` before boxes are
    # drawn, with the objects of --blur pixelated. "bgr": boxes are drawn into ``frame.image``.
    # "yuv420p": boxes are drawn into ``frame.picture``, which is planes or BGR. --no-video skips
    # sinks that need boxes drawn.
    pictures: ClassVar[str] = "none"
    one_picture: ClassVar[tuple[str, ...]] = ()  # the suffixes that mean a single picture
    ending: ClassVar[str] = "-detected"  # default name: IN + ending + suffix
    kinds: ClassVar[tuple[str, ...]] = ("video", "pictures")  # kinds of sources that it accepts
    alone: ClassVar[bool] = True  # whether -o FILE replaces the default outputs
    # Sinks are opened, written and closed by ascending ``order``. Sinks of rows come first: rows
    # are small, and are then complete even if the video fills the disk.
    order: ClassVar[int] = 0
    # Keyword arguments of __init__: options of config.output, or "remark", "style" (how boxes
    # look), "names" (``FrameNames``, shared by the sinks of a source).
    options: ClassVar[tuple[str, ...]] = ()
    # Modules that ``open`` and ``write`` import on first use.
    imports: ClassVar[tuple[str, ...]] = ()
    # Name of the sink's folder in a dataset (IN-dataset/), which several sinks write together.
    dataset: ClassVar[str] = ""
    # Whether the output shows the source's own pixels; --blur and --no-video are then refused.
    untouched: ClassVar[bool] = False
    needs: ClassVar[str] = ""  # the option without which its output would be empty

    # Options that this sink sets if the user does not, and their values.
    implies: ClassVar[Mapping[str, Any]] = {}

    path: Path
    notes: list[str]
    for_session: bytes = b""  # JSONL for the session (NAME/0.jsonl), set by ``close``
    beside: Sequence[Path] = ()  # further files that ``close`` wrote

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.notes = []

    @classmethod
    def check_options(cls, suffix: str, options: Mapping[str, Any]) -> None:
        """Raise UsageError for options of config.output that do not apply to this suffix."""

    @classmethod
    def check_source(cls, spec: str) -> None:
        """Raise UsageError if this output cannot be made from the source file ``spec``."""

    def open(self, info: SourceInfo) -> None:
        """Create the temporary file. Raises OutputError if the target cannot be written."""
        raise NotImplementedError

    def see(self, image: Image, detections: Detections) -> None:
        """Receive a frame's plain picture and detections, before ``write`` receives the frame."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame, in order. Must not keep its picture, whose buffer is reused."""
        raise NotImplementedError

    def close(self) -> Path | None:
        """Finish, check, fsync and rename the file; return its path, or None if nothing was
        written. A second call only returns the path."""
        raise NotImplementedError

    def abort(self) -> Path | None:
        """After a failure, keep the complete part in a temporary file; return its path, or None."""
        raise NotImplementedError


class _OnlyDetections(Sink):
    """A mix-in for --only-detections: the sink gets only frames with detections."""

    def see(self, image: Image, detections: Detections) -> None:
        if len(detections):
            super().see(image, detections)

    def write(self, frame: Frame, detections: Detections) -> None:
        if len(detections):
            super().write(frame, detections)


def only_detections(sink: type[Sink]) -> type[Sink]:
    """Return a subclass of the sink that skips frames without detections."""
    return type(sink.__name__, (_OnlyDetections, sink), {})
