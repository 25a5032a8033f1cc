"""Annotated H.264 video with the source's own time stamps and sound, whole or not at all.

    canvas.py   BGR pictures into the YUV picture that the encoder reads
    stamps.py   the source's time stamps, made fit for a container
    audio.py    the source's sound, cut to the frames
    h264.py     encoder and muxer: one file made of these three

This file imports none of them before a video is opened, so that asking what the sink declares is
cheap.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from detector.errors import OutputError, UsageError
from detector.sinks._partial import Partial, output_errors
from detector.sinks.base import Sink
from detector.types import Detections, Frame, SourceInfo

if TYPE_CHECKING:
    from detector.sinks.video.h264 import H264File

FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
LARGEST = 16384  # pixels a side, x264's limit


class VideoSink(Sink):
    """One H.264 file. ``close`` counts the frames in it before it gives it its final name."""

    name = "video"
    suffixes = tuple(FORMATS)
    pictures = "bgr"
    kinds = ("video",)
    default_for = ("video",)
    alone = False
    order = 4
    options = ("preset", "crf")

    def __init__(
        self, path: Path, *, preset: str = "superfast", crf: int = 23, audio: bool = True
    ) -> None:
        super().__init__(path)
        self._format = FORMATS.get(self.path.suffix.lower(), "")
        if not self._format:
            raise UsageError(
                f"a video cannot be called {self.path.name}; end its name in {', '.join(FORMATS)}"
            )
        self._preset, self._crf, self._audio = preset, crf, audio
        self._partial: Partial | None = None  # None before open, and after close or abort

    def open(self, info: SourceInfo) -> None:
        from detector.sinks.video.h264 import H264File

        self._partial = Partial(self.path, info.path)
        self._file: H264File = H264File(
            self._partial.path,
            self._format,
            info,
            preset=self._preset,
            crf=self._crf,
            audio=self._audio,
        )
        self.notes = self._file.notes

    def write(self, frame: Frame, detections: Detections) -> None:
        assert self._partial is not None, "write before open"
        if not self._file.sent and max(frame.image.shape[:2]) > LARGEST:
            raise OutputError(
                f"cannot write {self.path}: H.264 holds {LARGEST} pixels a side; "
                "use --save pictures"
            )
        with output_errors(self.path, self._file.errors):
            self._file.add(frame)

    def close(self) -> Path:
        if self._partial is None:
            return self.path
        sent = self._file.sent
        if not sent:
            raise OutputError(f"cannot write {self.path}: no frame came, so there is no video")
        with output_errors(self.path, self._file.errors):
            self._file.finish()
            arrived = self._file.count_packets()
        if arrived != sent:
            raise OutputError(
                f"{self.path}: {sent} frames were encoded, but the file holds {arrived}; "
                "the disk may be failing, write elsewhere with -o"
            )
        self._partial.commit()
        self._partial = None
        return self.path

    def abort(self) -> Path | None:
        partial, self._partial = self._partial, None
        if partial is None:
            return None
        with suppress(Exception):
            self._file.finish()
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):  # a file that cannot be read back is not worth keeping
            if self._file.sent and self._file.count_packets() > 0:
                partial.release()
                return partial.path
        partial.discard()
        return None
