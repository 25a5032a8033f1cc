"""The bounded queue of the recorder's thread. The loop and the feed fill it without waiting."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from detector.core.types import Detections, Image
from detector.live.recording.connection import Packet, RecordedStreams
from detector.live.recording.samples import NS

MOST_BYTES = 32_000_000
MOST_PICTURES = 8
MOST_ITEMS = 20_000
OLDEST_NS = NS * 4 // 10  # while the first item is older, drop pictures: a kill loses the queue
OLDEST_PACKET_NS = 5 * NS  # packets need no encoding, so they may wait for a slow disk


@dataclass(slots=True)
class Drawn:
    yuv: Image  # I420 [h * 3 / 2, w]
    size: tuple[int, int]  # height, width of the source
    arrived_ns: int
    utc_s: float
    epoch: int
    aspect_ratio: Any  # pixel aspect ratio, as a Fraction


@dataclass(slots=True)
class Sighting:
    """The result of detection in one picture."""

    arrived_ns: int
    in_clip: bool
    detections: Detections | None = None  # for the side-car, if there is one
    size: tuple[int, int] = (0, 0)  # height, width of the picture


@dataclass(slots=True)
class Closed:
    """The end of a connection."""


Item = Drawn | Sighting | RecordedStreams | Closed | Packet


class Inbox:
    """The queue. ``put_*`` never waits; ``take`` waits."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._items: deque[tuple[int, Item]] = deque()  # (time when the item was put, item)
        self._bytes = self._pictures = 0
        self._closed = False

    def put_picture(self, picture: Drawn, now_ns: int) -> bool:
        with self._condition:
            if not self.picture_fits(now_ns) or not self._fits(picture.yuv.nbytes):
                return False
            self._pictures += 1
            self._put(picture, now_ns)
            return True

    def picture_fits(self, now_ns: int) -> bool:
        """Return whether there is room for a picture. Callers ask before they convert it."""
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

    def put_message(self, message: Sighting | RecordedStreams | Closed, now_ns: int) -> None:
        """Add a small item. If MOST_BYTES would be exceeded, a sighting loses its boxes; if there
        are MOST_ITEMS already, a sighting is dropped."""
        with self._condition:
            if isinstance(message, Sighting):
                if len(self._items) >= MOST_ITEMS:
                    return
                if not self._fits(_size(message)):
                    message = Sighting(message.arrived_ns, message.in_clip)
            self._put(message, now_ns)

    def _fits(self, size: int) -> bool:
        return not self._closed and self._bytes + size <= MOST_BYTES

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
        detections = item.detections
        return detections.boxes.nbytes + detections.scores.nbytes + detections.class_ids.nbytes
    return len(item.data) if isinstance(item, Packet) else 0
