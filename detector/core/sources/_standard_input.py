"""Standard input as a file that can be read once, from its first byte to its last.

Until the first call of ``PipedSource.read`` or ``restrict``, all bytes are kept, so that the input
can be opened again. A pipe may stay silent for ever, so every wait checks ``stopped``.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
from collections.abc import Callable

from detector.core.errors import SourceError, UsageError

TICK_MS = 100  # between two checks of ``stopped``
MOST_KEPT = 512 << 20  # bytes kept; a frame of 8192x8192 is 100 MB
BOXES_WITHIN = 1 << 16  # bytes at the start of an MP4 in which we look for its index
HINT = "ffmpeg -i IN -c copy -f matroska - | detect-video -"
# Boxes of an MP4 that may precede its index (moov) or a fragment (moof).
_BEFORE_INDEX = (b"ftyp", b"styp", b"free", b"skip", b"wide", b"uuid", b"pdin", b"sidx", b"emsg")


class StandardInput:
    """A file for PyAV that can be rewound. ``stopped`` returns whether the run is over."""

    def __init__(self, descriptor: int = 0) -> None:
        self.stopped: Callable[[], bool] = lambda: False
        self.size = 0
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self._kept = bytearray()  # all bytes received before ``forget``
        self._at = 0  # position in the kept bytes
        self._keeps = True
        self._ended = False
        self._error: SourceError | None = None
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def check(self) -> None:
        """Raise UsageError for a terminal, and SourceError if the input was read before."""
        if os.isatty(self._descriptor):
            raise UsageError(
                f"-: standard input is a terminal, not a video; name a file, or pipe one in: {HINT}"
            )
        if not self._keeps:
            raise SourceError("-: standard input was already read, and can be read only once")

    def rewind(self) -> None:
        """Return to the first byte. Raises SourceError for an MP4 with its index at the end."""
        self.check()
        self._at = 0
        self._refuse_index_at_end()

    def forget(self) -> None:
        """Stop keeping bytes, because the input will not be opened again."""
        self._keeps = False

    def read_beginning(self, length: int) -> bytes:
        """Return the first ``length`` bytes, or all if there are fewer. Call before ``forget``."""
        while len(self._kept) < length and not self._ended:
            self._kept += self._receive(length - len(self._kept))
        return bytes(self._kept[:length])

    def read(self, length: int) -> bytes:
        """Return some of the next bytes; b"" at the end, or if the run was stopped."""
        if self._at < len(self._kept):
            data = bytes(self._kept[self._at : self._at + length])
        else:
            data = self._receive(length)
            if self._keeps:
                self._keep(data)
        self._at += len(data)
        if not self._keeps and self._at >= len(self._kept):
            self._kept, self._at = bytearray(), 0
        return data

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > MOST_KEPT:
            self._ended = True
            self._error = SourceError(
                f"-: no frame in the first {MOST_KEPT >> 20} MB of standard input; send a video "
                f"that can be streamed: {HINT}"
            )

    def _receive(self, length: int) -> bytes:
        while not self._ended:
            try:
                if self._poll.poll(TICK_MS) and (data := os.read(self._descriptor, length)):
                    self._digest.update(data)
                    self.size += len(data)
                    return data
                # At the end, the pipe is ready but has no data. A silent pipe is not ready.
                self._ended = bool(self._poll.poll(0)) or self.stopped()
            except BlockingIOError:
                self._ended = self.stopped()
            except OSError as error:
                self._ended = True
                what = "it is a folder" if error.errno == errno.EISDIR else error.strerror
                self._error = SourceError(
                    f"-: standard input cannot be read ({what}); send a video: {HINT}"
                )
        return b""

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _refuse_index_at_end(self) -> None:
        """Refuse an MP4 with its index at the end: FFmpeg would skip the pictures to find it."""
        at = 0
        while at < BOXES_WITHIN:
            head = self.read_beginning(at + 16)[at:]
            name, size = head[4:8], int.from_bytes(head[:4], "big")
            if name == b"mdat":
                raise SourceError(
                    "-: an MP4 with its index at the end cannot be read from a pipe; give the "
                    f"file's name, or send another format: {HINT}"
                )
            if name not in _BEFORE_INDEX:
                return
            at += int.from_bytes(head[8:16], "big") if size == 1 else max(size, 8)

    def sha256(self) -> str | None:
        """Return the hex digest of the bytes read; None if there were none."""
        return self._digest.hexdigest() if self.size else None

    def changes(self) -> list[str]:
        return []


_current: StandardInput | None = None


def standard_input() -> StandardInput:
    global _current
    if _current is None:
        _current = StandardInput()
    return _current
