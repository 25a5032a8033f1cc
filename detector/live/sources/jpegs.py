"""Reads JPEGs from web responses that FFmpeg cannot read: malformed multiparts, single pictures.

We find pictures by JPEG's own markers, and pass them to FFmpeg as a correct multipart.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from detector.core.sources._network.nested import NestedFile

BEGIN, SIGN = b"\xff\xd8", b"\xff\xd8\xff"
MOST_BYTES = 64 << 20  # largest picture
MOST_PREAMBLE = 1 << 20  # bytes of a response before its first picture
CHUNK = 1 << 16
SHOWN = 60  # bytes of the preamble that are reported
CHECK_S = 0.05  # between calls of ``is_stopped``
WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length
SCAN, END, FILL = 0xDA, 0xD9, 0xFF
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)
HEAD = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"


class Jpegs:
    """A file that PyAV reads as ``mpjpeg``. ``request`` is called at most once per ``every_s``."""

    def __init__(
        self,
        request: Callable[[], NestedFile | None],
        every_s: float,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._request, self._every_s, self._is_stopped = request, every_s, is_stopped
        self._next_s = 0.0
        self._response: NestedFile | None = None
        self._data = bytearray()
        self._rest = b""
        self._count = 0  # pictures in this response
        self.preamble = ""  # the beginning of the text before the first picture

    def find_first(self) -> bool:
        self._begin()
        self._rest = self._next_part()
        return bool(self._rest)

    def read(self, length: int) -> bytes:
        while not self._rest and not self._is_stopped():
            self._rest = self._next_part()
            if not self._rest and not (self._count and self._begin()):
                return b""
        data, self._rest = self._rest[:length], self._rest[length:]
        return data

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def _begin(self) -> bool:
        self.close()
        while (wait_s := self._next_s - time.monotonic()) > 0:
            if self._is_stopped():
                return False
            time.sleep(min(wait_s, CHECK_S))
        self._next_s = time.monotonic() + self._every_s
        self._data.clear()
        self._count, self._response = 0, self._request()
        return self._response is not None

    def _next_part(self) -> bytes:
        passed = 0
        while self._response is not None and (self._count or passed < MOST_PREAMBLE):
            start = self._data.find(SIGN)
            if start < 0:
                self._note_preamble(len(self._data))
                kept = min(len(self._data), len(BEGIN))
                passed += len(self._data) - kept
                del self._data[: len(self._data) - kept]
                if not self._receive():
                    break
                continue
            self._note_preamble(start)
            del self._data[:start]
            end, is_whole = self._find_end()
            picture = bytes(self._data[:end])
            del self._data[:end]
            if is_whole:
                self._count += 1
                return HEAD % len(picture) + picture + b"\r\n"
            passed += end
        return b""

    def _note_preamble(self, length: int) -> None:
        if not self.preamble and not self._count:
            self.preamble = self._data[: min(length, SHOWN)].decode("ascii", "replace").strip()

    def _find_end(self) -> tuple[int, bool]:
        """Return where the picture at the start of ``_data`` ends, and whether it is whole."""
        at, data = len(BEGIN), self._data
        while self._ensure(at + 2):
            marker = data[at + 1]
            if data[at] != FILL or data[at : at + 2] == BEGIN:
                return at, False
            if marker == END:
                return at + 2, True
            if marker == FILL or marker in WITHOUT_LENGTH:
                at += 1 if marker == FILL else 2
                continue
            if not self._ensure(at + 4):
                break
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
            while marker == SCAN:
                if (end := _AFTER_SCAN.search(data, at)) is not None:
                    at = end.start()
                    break
                at = max(at, len(data) - 1)
                if not self._ensure(len(data) + 1):
                    return len(data), False
        return len(data), False

    def _ensure(self, length: int) -> bool:
        while len(self._data) < length:
            if length > MOST_BYTES or not self._receive():
                return False
        return True

    def _receive(self) -> bool:
        if self._is_stopped() or self._response is None:
            return False
        data = self._response.read(CHUNK)
        self._data += data
        return bool(data)
