"""Holds the decoded pictures of one camera until the loop takes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from fractions import Fraction

from detector.live.sources.base import LAG, NEWER, RATE, STOPPED, Picture

PLACES = 4  # length of the queue, which takes 12 MB at 1080p


class Slot:
    """Holds the newest picture if ``latest``, or else a queue. The decoder waits while the queue is
    full."""

    def __init__(
        self,
        latest: bool,
        max_age_s: float,
        drop: Callable[[str, int], None],
        rate: Fraction | None = None,
    ) -> None:
        self._latest, self._max_age_ns, self._drop = latest, round(max_age_s * 1e9), drop
        self._interval_ns = round(1e9 / rate) if rate else 0
        self._due_ns: int | None = None  # when the next picture is due, by ``rate``
        self._changed = threading.Condition()
        self._pictures: deque[Picture] = deque()
        self._closed = False

    def put(self, picture: Picture) -> bool:
        """Add a picture; return False if the camera's rate skips it, or after ``close``."""
        with self._changed:
            if self._closed:
                self._drop(STOPPED, 1)
                return False
            if not self._is_due(picture.arrival.arrived_ns):
                self._drop(RATE, 1)
                return False
            if self._latest and self._pictures:
                self._drop(NEWER, len(self._pictures))
                self._pictures.clear()
            self._pictures.append(picture)
            return True

    def has_room(self, timeout_s: float = 0.0) -> bool:
        """Wait up to ``timeout_s`` for room; return whether there is any."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._latest or self._closed or len(self._pictures) < PLACES, timeout_s
            )

    def take(self, now_ns: int) -> Picture | None:
        """Drop pictures that are too old, except the newest one. Return the oldest that is left."""
        with self._changed:
            oldest_ns = now_ns - self._max_age_ns
            while len(self._pictures) > 1 and self._pictures[0].arrival.arrived_ns < oldest_ns:
                self._pictures.popleft()
                self._drop(LAG, 1)
            picture = self._pictures.popleft() if self._pictures else None
            self._changed.notify_all()
            return picture

    def __len__(self) -> int:
        with self._changed:
            return len(self._pictures)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._drop(STOPPED, len(self._pictures))
            self._pictures.clear()
            self._changed.notify_all()

    def _is_due(self, arrived_ns: int) -> bool:
        """Due times are regular, so that a rate of 10 turns 25 FPS into exactly 10."""
        if not self._interval_ns:
            return True
        if self._due_ns is None or arrived_ns - self._due_ns > self._interval_ns:
            self._due_ns = arrived_ns  # the first picture, or the first after a gap
        # Accept early pictures, so that a camera of exactly this rate loses none to jitter.
        if arrived_ns + self._interval_ns // 4 < self._due_ns:
            return False
        self._due_ns += self._interval_ns
        return True
