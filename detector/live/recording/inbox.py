"""The bounded queue between threads that must not wait and the recorder's thread."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from detector.core.types import Detections, Image
from detector.live.recording.connection import Packet
from detector.live.recording.samples import NS

MOST_BYTES = 32_000_000
MOST_PICTURES = 8
MOST_ITEMS = 20_000
# A kill loses queued items, so drop a picture if the first item is older than this.
OLDEST_NS = NS * 4 // 10
# Packets need no encoding, so they may wait for a slow disk.
OLDEST_PACKET_NS = 5 * NS


@dataclass(slots=True)
class Drawn:
    yuv: Image  # I420 [h * 3 / 2, w]
    size: tuple[int, int]  # height, width of the source
    arrived_ns: int
    utc_s: float
    epoch: int
    aspect_ratio: Any  # Fraction, of a pixel


@dataclass(slots=True)
class Sighting:
    arrived_ns: int
    found: bool
    # For the side-car with boxes; None: no side-car.
    detections: Detections | None = None
    size: tuple[int, int] = (0, 0)  # height, width of the picture


@dataclass(slots=True)
class Opened:
    connection: Any


@dataclass(slots=True)
class Closed:
    """The connection has ended."""


Item = Drawn | Sighting | Opened | Closed | Packet


class Inbox:
    """The queue. ``put_*`` never waits and returns whether there was room; ``take`` waits."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._condition = threading.Condition()
        self._items: deque[tuple[int, Item]] = deque()  # with the time of arrival
        self._most_bytes = most_bytes
        self._bytes = self._pictures = 0
        self._closed = False

    def put_picture(self, picture: Drawn, now_ns: int) -> bool:
        with self._condition:
            late = bool(self._items) and now_ns - self._items[0][0] > OLDEST_NS
            if late or self._pictures >= MOST_PICTURES or not self._fits(picture.yuv.nbytes):
                return False
            self._pictures += 1
            self._put(picture, now_ns)
            return True

    def picture_fits(self, now_ns: int) -> bool:
        """Tell whether ``put_picture`` would accept one, before it is converted."""
        with self._condition:
            late = bool(self._items) and now_ns - self._items[0][0] > OLDEST_NS
            return not late and self._pictures < MOST_PICTURES

    def put_packet(self, packet: Packet, now_ns: int) -> bool:
        with self._condition:
            late = bool(self._items) and now_ns - self._items[0][0] > OLDEST_PACKET_NS
            if late or not self._fits(len(packet.data)):
                return False
            self._put(packet, now_ns)
            return True

    def put_word(self, word: Sighting | Opened | Closed, now_ns: int) -> None:
        """Add a small item. If space is short its boxes are dropped first, then the item."""
        with self._condition:
            if isinstance(word, Sighting):
                if len(self._items) >= MOST_ITEMS:
                    return
                if not self._fits(_size(word)):
                    word = Sighting(word.arrived_ns, word.found)
            self._put(word, now_ns)

    def _fits(self, size: int) -> bool:
        return not self._closed and self._bytes + size <= self._most_bytes

    def _put(self, item: Item, now_ns: int) -> None:
        if self._closed:
            return
        self._items.append((now_ns, item))
        self._bytes += _size(item)
        self._condition.notify()

    def take(self, timeout_s: float) -> Item | None:
        with self._condition:
            self._condition.wait_for(lambda: self._items or self._closed, timeout_s)
            if not self._items:
                return None
            item = self._items.popleft()[1]
            self._bytes -= _size(item)
            self._pictures -= isinstance(item, Drawn)
            return item

    def close(self) -> None:
        """Accept no more items; queued ones can still be taken."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    @property
    def ended(self) -> bool:
        with self._condition:
            return self._closed and not self._items


def _size(item: Item) -> int:
    if isinstance(item, Drawn):
        return int(item.yuv.nbytes)
    if isinstance(item, Sighting) and item.detections is not None:
        found = item.detections
        return found.boxes.nbytes + found.scores.nbytes + found.class_ids.nbytes
    return len(item.data) if isinstance(item, Packet) else 0
