"""Write rows to standard output during a run.

A pipe accepts a line of up to ``select.PIPE_BUF`` bytes (4096) as a whole or not at all.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from detector.core.errors import OutputError
from detector.core.errors.writing import utf8
from detector.core.sinks._rows import RowsSink
from detector.core.sinks.base import Sink
from detector.core.types import Detections, Frame, SourceInfo

GONE_ERRNOS = (errno.EPIPE, errno.EIO)  # the reader of a pipe (`| head`) or the terminal is gone


class RowStream:
    """Writes rows to an open descriptor until its reader is gone, then calls ``on_lost``."""

    def __init__(self, descriptor: int, on_lost: Callable[[], None]) -> None:
        self.is_read = True
        self.descriptor, self._on_lost = descriptor, on_lost
        self._header = ""

    def begin(self, header: str) -> None:
        """Write the header, once for all sources."""
        if not self._header:
            self._header = header
            self.write(header)

    def lose_reader(self) -> None:
        self.is_read = False
        self._on_lost()

    def write(self, lines: str) -> None:
        """Write complete lines. Raises OutputError if that fails, as on a full disk."""
        data, start = utf8(lines), self._position()
        while data and self.is_read:
            try:
                data = data[os.write(self.descriptor, data) :]
            except BlockingIOError:  # our parent made the descriptor non-blocking
                self._is_ready(None)
            except OSError as error:
                if error.errno in GONE_ERRNOS:
                    self.lose_reader()
                    return
                self._truncate(start)
                raise OutputError(
                    f"cannot print to standard output: {error.strerror}; check where it is "
                    "redirected"
                ) from error
            except BaseException:  # after a second stop signal, finish the line unless that blocks
                with suppress(OSError):
                    while data and self._is_ready(0):
                        data = data[os.write(self.descriptor, data[: select.PIPE_BUF]) :]
                raise

    def _is_ready(self, timeout_ms: int | None) -> bool:
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        return bool(poll.poll(timeout_ms))

    def _position(self) -> int | None:
        """Return the position of the next line if this is a file that only we write, else None."""
        try:
            about = os.fstat(self.descriptor)
            at = os.lseek(self.descriptor, 0, os.SEEK_CUR)
        except OSError:
            return None
        return at if stat.S_ISREG(about.st_mode) and at == about.st_size else None

    def _truncate(self, start: int | None) -> None:
        if start is not None:
            with suppress(OSError):
                os.ftruncate(self.descriptor, start)
                os.lseek(self.descriptor, start, os.SEEK_SET)


class StreamedRows(Sink):
    name = "stdout"

    def __init__(self, rows: RowsSink, stream: RowStream) -> None:
        super().__init__(Path("-"))
        self._rows, self._stream = rows, stream

    def open(self, info: SourceInfo) -> None:
        self._rows.describe(info)
        self._stream.begin(self._rows.header)

    def write(self, frame: Frame, detections: Detections) -> None:
        if lines := self._rows.rows(frame, detections):
            self._stream.write(lines)

    def close(self) -> None:
        """Do nothing: there is no file to finish."""

    def abort(self) -> None:
        """Do nothing, like ``close``."""
