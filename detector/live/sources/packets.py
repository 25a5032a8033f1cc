"""The queue of packets between the receiving and the decoding thread.

The receiving thread never waits: otherwise the system's buffers would fill, and delay every later
picture. If the decoder is too slow, whole groups of pictures are dropped here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detector.live.sources.base import LAG, NO_KEY, UNDECODED

EAGER_LAG_S = 0.5  # with ``eager``, a longer lag makes the queue jump to a newer key frame
MOST_BYTES = 256 << 20  # limit for one camera's packets
MOST_KEYLESS = 400  # after this many packets without a key frame, packets are decoded anyway


@dataclass(slots=True)
class Stamp:
    number: int
    epoch: int
    arrived_ns: int
    utc_s: float
    captured_s: float | None = None
    damaged: bool = False  # the decoder reported damage


@dataclass(slots=True)
class Received:
    packet: Any
    stamp: Stamp
    codec: Any
    is_key: bool
    size: int  # bytes
    after_gap: bool = False  # packets before this one were dropped


@dataclass(slots=True)
class End:
    """The end of a connection, where the decoder is flushed."""

    epoch: int
    codec: Any


class PacketQueue:
    """A FIFO queue, limited by age and bytes. ``eager``: if it lags, jump to a queued key frame."""

    def __init__(self, max_age_s: float, eager: bool, drop: Callable[[str, int], None]) -> None:
        self._max_age_ns, self._eager, self._drop = round(max_age_s * 1e9), eager, drop
        self._changed = threading.Condition()
        self._items: deque[Received | End] = deque()
        self._bytes = 0
        self._reason: str | None = NO_KEY  # why packets are dropped until the next key frame
        self._keyless = 0  # packets since dropping began
        self._closed = False

    def begin(self) -> None:
        """Begin a connection, and drop packets before its first key frame."""
        with self._changed:
            self._reason, self._keyless = NO_KEY, 0

    def put(self, received: Received) -> None:
        with self._changed:
            if self._reason is not None:
                self._keyless += 1  # cameras with intra refresh never send a key frame
                if not received.is_key and self._keyless <= MOST_KEYLESS:
                    self._drop(self._reason, 1)
                    return
            received.after_gap = self._reason == LAG
            self._reason = None
            self._items.append(received)
            self._bytes += received.size
            self._limit_lag(received.stamp.arrived_ns)
            self._changed.notify()

    def finish(self, end: End) -> None:
        with self._changed:
            self._items.append(end)
            self._changed.notify()

    def get(self, timeout_s: float) -> Received | End | None:
        """Return the next item; None after ``timeout_s`` without one, or after ``close``."""
        with self._changed:
            if not self._items and not self._closed:
                self._changed.wait(timeout_s)
            if not self._items or self._closed:
                return None
            item = self._items.popleft()
            if isinstance(item, Received):
                self._bytes -= item.size
            return item

    def drop_group(self) -> None:
        """Drop queued and future packets, up to the next key frame."""
        with self._changed:
            count = 0
            while self._items and isinstance(item := self._items[0], Received) and not item.is_key:
                self._items.popleft()
                self._bytes -= item.size
                count += 1
            if not self._items:
                self._reason, self._keyless = UNDECODED, 0
            self._drop(UNDECODED, count)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> int:
        """Make ``get`` return None from now on. Return how many packets were not decoded."""
        with self._changed:
            self._closed = True
            left = sum(isinstance(item, Received) for item in self._items)
            self._items.clear()
            self._bytes = 0
            self._changed.notify_all()
            return left

    # Callers of these methods hold the lock.

    def _limit_lag(self, now_ns: int) -> None:
        arrivals = (item.stamp.arrived_ns for item in self._items if isinstance(item, Received))
        lag_ns = now_ns - next(arrivals, now_ns)
        too_much = lag_ns > self._max_age_ns or self._bytes > MOST_BYTES
        if too_much or (self._eager and lag_ns > EAGER_LAG_S * 1e9):
            newest_key = self._newest_key()
            if newest_key:
                self._drop_first(newest_key)
            elif too_much:
                self._drop_first(len(self._items))
                self._reason, self._keyless = LAG, 0

    def _newest_key(self) -> int:
        """Return the index of the newest key frame; 0 if there is none after the first item."""
        for place in range(len(self._items) - 1, 0, -1):
            item = self._items[place]
            if isinstance(item, Received) and item.is_key:
                return place
        return 0

    def _drop_first(self, count: int) -> None:
        dropped, ends = 0, []
        for _ in range(count):
            item = self._items.popleft()
            if isinstance(item, Received):
                dropped += 1
                self._bytes -= item.size
            else:
                ends.append(item)
        if self._items:
            first = self._items[0]
            if isinstance(first, Received):
                first.after_gap = True
        self._items.extendleft(reversed(ends))
        self._drop(LAG, dropped)
