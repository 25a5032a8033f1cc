"""How long at least one of several threads was inside a stage."""

from __future__ import annotations

import threading


class Meter:
    """Length of the union of intervals, streaming. Inference FPS stands on it: frames / seconds in which at least one
    ``infer`` was running, so that neither a slow reader nor several requests at once distort it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0
        self.total_ns = 0

    def enter(self, now: int) -> None:
        with self._lock:
            if not self._inside:
                # A thread may read its clock and be overtaken before it gets the lock: never count time twice.
                self._since = max(now, self._since)
            self._inside += 1

    def leave(self, now: int) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self.total_ns += max(0, now - self._since)
                self._since = now
