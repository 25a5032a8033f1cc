"""Interrupts FFmpeg's blocking calls from another thread.

PyAV's interrupt callback only checks a timeout against the clock. So we give PyAV a clock that
leaps ahead for the threads that must stop.
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


class _LeapingClock:
    """The module ``time`` for PyAV, with a leaping clock."""

    def __init__(self, real: ModuleType) -> None:
        self._real, self._leaps = real, 0

    def monotonic(self) -> float:
        now: float = self._real.monotonic()
        if _stopped and threading.get_ident() in _stopped:
            # Leap again at each call, because the first call may set the start of the timeout.
            self._leaps += 1
            now += LEAP_S * self._leaps
        return now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


av.container.core.time = _LeapingClock(time)


class Interrupt:
    """Ends the FFmpeg calls inside its ``with`` block. The calls must have a timeout."""

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
        """End the current FFmpeg call, and all later ones."""
        with self._lock:
            self.stopped.set()
        self.cut()

    def set_cut(self, cut: Callable[[], None]) -> None:
        """Set a function that ends the thread's current read if FFmpeg is not the reader."""
        self._cut = cut
        if self.is_cut():
            cut()

    def cut(self) -> None:
        """End the current FFmpeg call. The thread must ``resume`` before it continues."""
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
