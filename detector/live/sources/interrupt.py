"""Ends a read of FFmpeg from another thread, at once.

PyAV's callback looks at the clock alone, and a container that a timeout has ended is of no use over
HTTP. So PyAV gets a clock that jumps to the end of time for a thread that was told to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import av.container.core

LEAP_S = 1e6  # longer than any timeout
_stopped: set[int] = set()  # identities of threads


class _Clock:
    def __init__(self, real: ModuleType) -> None:
        self._real, self._leaps = real, 0

    def monotonic(self) -> float:
        now: float = self._real.monotonic()
        if _stopped and threading.get_ident() in _stopped:
            # A leap more at each call: the first may be the one that starts a read's time.
            self._leaps += 1
            now += LEAP_S * self._leaps
        return now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


av.container.core.time = _Clock(time)


class Interrupt:
    """``with interrupt:`` around a thread; ``stop`` ends its FFmpeg calls, which need a timeout."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._thread: int | None = None
        self._cut: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def __enter__(self) -> Interrupt:
        with self._lock:
            self._thread = threading.get_ident()
            if self.stopped.is_set():
                _stopped.add(self._thread)
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        with self._lock:
            self._thread = None

    def stop(self) -> None:
        """For good: what FFmpeg does now ends, and so does all that follows."""
        with self._lock:
            self.stopped.set()
        self.cut()

    def call(self, cut: Callable[[], None]) -> None:
        """``cut`` ends a read of the thread that is none of FFmpeg's, until ``resume``."""
        self._cut = cut
        if self.is_cut():
            cut()

    def cut(self) -> None:
        """Ends what FFmpeg does now; the thread calls ``resume`` before it goes on."""
        with self._lock:
            if self._thread is not None:
                _stopped.add(self._thread)
        self._cut()

    def is_cut(self) -> bool:
        with self._lock:
            return self.stopped.is_set() or self._thread in _stopped

    def resume(self) -> None:
        self._cut = lambda: None
        with self._lock:
            if self._thread is not None:
                _stopped.discard(self._thread)
