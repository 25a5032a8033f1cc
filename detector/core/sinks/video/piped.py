"""Write the annotated video into a pipe, as Matroska, which can be read without seeking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from detector.core.errors import OutputError
from detector.core.sinks._stream import GONE_ERRNOS, RowStream
from detector.core.sinks.video import VideoSink
from detector.core.types import Detections, Frame, SourceInfo

NAME = Path("-.mkv")  # its suffix selects the format


class PipedVideo(VideoSink):
    """Writes a video to an open descriptor. Once nobody reads it, further frames are discarded."""

    def __init__(self, stream: RowStream, **options: Any) -> None:
        super().__init__(NAME, **options)
        self._stream = stream

    def open(self, info: SourceInfo) -> None:
        self._open_file(self._choose_file(), Path(f"pipe:{self._stream.descriptor}"), info)

    def write(self, frame: Frame, detections: Detections) -> None:
        if self._stream.is_read:
            with self._detect_lost_reader():
                self._encode(frame, detections)

    def close(self) -> None:
        if self._stream.is_read:
            with self._detect_lost_reader():
                self._file.finish()
        else:
            self.abort()

    def abort(self) -> None:
        with suppress(Exception):
            self._file.finish()
        with suppress(Exception):
            self._file.close()

    @contextmanager
    def _detect_lost_reader(self) -> Iterator[None]:
        try:
            yield
        except self._file.errors as error:
            if getattr(error, "errno", None) not in GONE_ERRNOS:
                raise OutputError(
                    f"cannot write to standard output: {error}; check where it is redirected"
                ) from error
            self._stream.lose_reader()
