"""JPEGs from web servers that FFmpeg cannot read: a malformed multipart, or one still picture.

Pictures are found by JPEG's own markers, and passed to FFmpeg as a correct multipart.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from detector.core.sources._network.nested import NestedFile

BEGIN, SIGN = b"\xff\xd8", b"\xff\xd8\xff"
MOST_BYTES = 64 << 20  # of one picture
MOST_BEFORE = 1 << 20  # bytes of a response before its first picture
CHUNK = 1 << 16
SHOWN = 60  # bytes reported of what precedes the first picture
LOOK_S = 0.05  # between checks whether to stop
ALONE = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length
SCAN, END, FILL = 0xDA, 0xD9, 0xFF
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)
HEAD = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"


class Jpegs:
    """A file for PyAV's ``mpjpeg``. Requests at most every ``every_s``, until ``is_over``."""

    def __init__(
        self, ask: Callable[[], NestedFile | None], every_s: float, is_over: Callable[[], bool]
    ) -> None:
        self._ask, self._every_s, self._is_over = ask, every_s, is_over
        self._next_s = 0.0
        self._answer: NestedFile | None = None
        self._data = bytearray()
        self._rest = b""
        self._count = 0  # pictures in this response
        self.before = ""  # the beginning of what precedes the first picture

    def begins(self) -> bool:
        self._begin()
        self._rest = self._next_part()
        return bool(self._rest)

    def read(self, length: int) -> bytes:
        while not self._rest and not self._is_over():
            self._rest = self._next_part()
            if not self._rest and not (self._count and self._begin()):
                return b""
        data, self._rest = self._rest[:length], self._rest[length:]
        return data

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def _begin(self) -> bool:
        self.close()
        while (wait_s := self._next_s - time.monotonic()) > 0:
            if self._is_over():
                return False
            time.sleep(min(wait_s, LOOK_S))
        self._next_s = time.monotonic() + self._every_s
        self._data.clear()
        self._count, self._answer = 0, self._ask()
        return self._answer is not None

    def _next_part(self) -> bytes:
        passed = 0
        while self._answer is not None and (self._count or passed < MOST_BEFORE):
            start = self._data.find(SIGN)
            if start < 0:
                self._note(len(self._data))
                kept = min(len(self._data), len(BEGIN))
                passed += len(self._data) - kept
                del self._data[: len(self._data) - kept]
                if not self._receive():
                    break
                continue
            self._note(start)
            del self._data[:start]
            end, is_whole = self._walk()
            picture = bytes(self._data[:end])
            del self._data[:end]
            if is_whole:
                self._count += 1
                return HEAD % len(picture) + picture + b"\r\n"
            passed += end
        return b""

    def _note(self, length: int) -> None:
        if not self.before and not self._count:
            self.before = self._data[: min(length, SHOWN)].decode("ascii", "replace").strip()

    def _walk(self) -> tuple[int, bool]:
        """Return the end of the first picture, and whether it has its end marker."""
        at, data = len(BEGIN), self._data
        while self._has(at + 2):
            marker = data[at + 1]
            if data[at] != FILL or data[at : at + 2] == BEGIN:
                return at, False
            if marker == END:
                return at + 2, True
            if marker == FILL or marker in ALONE:
                at += 1 if marker == FILL else 2
                continue
            if not self._has(at + 4):
                break
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
            while marker == SCAN:
                if (found := _AFTER_SCAN.search(data, at)) is not None:
                    at = found.start()
                    break
                at = max(at, len(data) - 1)
                if not self._has(len(data) + 1):
                    return len(data), False
        return len(data), False

    def _has(self, length: int) -> bool:
        while len(self._data) < length:
            if length > MOST_BYTES or not self._receive():
                return False
        return True

    def _receive(self) -> bool:
        if self._is_over() or self._answer is None:
            return False
        data = self._answer.read(CHUNK)
        self._data += data
        return bool(data)
