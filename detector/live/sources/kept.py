"""The connection to a server that takes one client, once: ``ffmpeg -listen 1``.

Who asked it what it sends is that client, so the feed reads on where the question ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from http.client import HTTPException

from detector.core.sources._web import Answer

CHUNK = 1 << 16  # bytes
ROOM = 16  # chunks that wait: the server waits beyond
LOOK_S = 0.1  # between two looks at whether the read is to end


class KeptConnection:
    """A file that PyAV reads. ``is_over`` is asked while nothing comes, and ends it."""

    def __init__(self, answer: Answer, head: bytes, is_over: Callable[[], bool]) -> None:
        self._answer, self._rest, self._is_over = answer, head, is_over
        self._chunks: queue.Queue[bytes] = queue.Queue(ROOM)
        self._closed = threading.Event()
        threading.Thread(target=self._receive, name="detect-video kept", daemon=True).start()

    def _receive(self) -> None:
        data = b"-"
        while data:
            try:
                data = self._answer.read(CHUNK)
            except (OSError, HTTPException, ValueError):
                data = b""
            while not self._closed.is_set():
                try:
                    self._chunks.put(data, timeout=LOOK_S)
                    break
                except queue.Full:
                    continue
        self._answer.close()

    def read(self, length: int) -> bytes:
        """Some of the next bytes; b"" at the end."""
        while not self._rest:
            try:
                self._rest = self._chunks.get(timeout=LOOK_S)
            except queue.Empty:
                if not self._is_over():
                    continue
                self.close()
            if not self._rest:
                return b""
        data, self._rest = self._rest[:length], self._rest[length:]
        return data

    def close(self) -> None:
        self._closed.set()
        self._answer.cut()
