"""Decodes the packets of one camera, and matches pictures to packets."""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.codec.context import Flags
from av.video.reformatter import VideoReformatter

from detector.core.sources._bgr import is_deep_grey, to_bgr
from detector.core.sources._cv2 import fits, upright
from detector.core.sources._grey import choose_for_video, follow, to_bgr_of_grey
from detector.core.sources.base import AUTO, GreyRange
from detector.core.types import Arrival, Image
from detector.live.sources.base import CORRUPT, Picture
from detector.live.sources.ffmpeg_log import DamageLog
from detector.live.sources.packets import End, Received, Stamp

MOST_REORDERED = 16  # pictures that a decoder of H.264 or H.265 may delay
MOST_PENDING = 100  # packets; no decoder delays more
FINGERPRINT_NS = 500_000_000  # between checks whether the picture still changes
GRID = 48  # at least this many points per side are compared


def prepare(codec: Any) -> None:
    # Each of FFmpeg's frame threads would delay the output by a picture. One core is enough.
    codec.thread_type = "SLICE"
    codec.thread_count = 1
    codec.flags |= Flags.copy_opaque


class PacketDecoder:
    """Decodes one camera's packets. A packet that yields no picture counts as corrupt."""

    def __init__(
        self, camera: str, drop: Callable[[str, int], None], clock: Callable[[], int]
    ) -> None:
        self._camera, self._drop, self._clock = camera, drop, clock
        self._pending: list[int] = []  # a heap of the numbers of packets in the decoder
        self._fingerprint_ns: int | None = None
        self._next_pts = 0
        self._time_base = Fraction(1, 1000)

    def decode(self, received: Received, damage_log: DamageLog) -> Iterator[tuple[Picture, Any]]:
        """Yield (picture, PyAV's frame) for the pictures that the decoder returns now."""
        codec, stamp = received.codec, received.stamp
        if received.after_gap:
            yield from self.flush(End(stamp.epoch, codec))
        heapq.heappush(self._pending, stamp.number)
        received.packet.opaque = stamp
        damage_log.take_damage()  # discard messages about earlier packets
        try:
            frames = codec.decode(received.packet)
        except av.error.FFmpegError:
            self._drop_packet(stamp.number)
            return
        stamp.damaged = damage_log.take_damage()
        yield from self._pictures(frames, codec)
        while len(self._pending) > MOST_PENDING:  # the decoder returns no pictures
            self._drop_packet(self._pending[0])

    def flush(self, end: End) -> Iterator[tuple[Picture, Any]]:
        """Yield the delayed pictures, then drop the packets that yielded none."""
        # The codec raises if it holds no packets, or only damaged ones, which ``abandon`` counts.
        with contextlib.suppress(av.error.FFmpegError):
            yield from self._pictures(end.codec.decode(None), end.codec)
        end.codec.flush_buffers()  # otherwise it accepts no more packets
        self.abandon(CORRUPT)

    def abandon(self, reason: str) -> None:
        self._drop(reason, len(self._pending))
        self._pending.clear()

    def _pictures(self, frames: list[Any], codec: Any) -> Iterator[tuple[Picture, Any]]:
        for frame in frames:
            stamp = frame.opaque
            if not isinstance(stamp, Stamp):
                continue
            number = self._take_number(stamp.number, bool(codec.has_b_frames))
            if number is None:
                continue  # a second field or layer of the same picture
            if frame.is_corrupt or stamp.damaged:
                self._drop(CORRUPT, 1)
                continue
            yield self._picture(frame, stamp, number), frame

    def _take_number(self, number: int, reordered: bool) -> int | None:
        """Return the picture's number, if any. Drop packets that are too old to yield a picture."""
        oldest = number - MOST_REORDERED if reordered else number
        while self._pending and self._pending[0] < oldest:
            heapq.heappop(self._pending)
            self._drop(CORRUPT, 1)
        return heapq.heappop(self._pending) if self._pending else None

    def _drop_packet(self, number: int) -> None:
        if number in self._pending:
            self._pending.remove(number)
            heapq.heapify(self._pending)
            self._drop(CORRUPT, 1)

    def _picture(self, frame: Any, stamp: Stamp, number: int) -> Picture:
        width, height = frame.width, frame.height
        if frame.rotation % 180 == 90:
            width, height = height, width
        arrival = Arrival(
            *(self._camera, stamp.epoch, stamp.arrived_ns, stamp.utc_s, self._clock()),
            stamp.captured_s,
        )
        pts = frame.pts if frame.pts is not None else self._next_pts
        self._next_pts = pts + 1
        # Pictures from a flush have no time base.
        self._time_base = frame.time_base or self._time_base
        return Picture(number, pts, self._time_base, width, height, arrival, frame)

    def fingerprint(self, frame: Any, now_ns: int) -> int | None:
        """Return a hash of the picture; None if the last hash is newer than ``FINGERPRINT_NS``."""
        if self._fingerprint_ns is not None and now_ns - self._fingerprint_ns < FINGERPRINT_NS:
            return None
        self._fingerprint_ns = now_ns
        plane = frame.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
        # With even steps, all points could hit the same phase of a regular pattern.
        down, right = plane.height // GRID | 1, plane.line_size // GRID | 1
        return hash(rows[::down, ::right].tobytes())


class Converter:
    def __init__(self, grey: str | GreyRange = AUTO) -> None:
        self._wanted = grey
        self.grey: GreyRange | None = None  # the grey range of the last picture
        self._lock = threading.Lock()
        self._reformatter = VideoReformatter()  # reused, to keep its tables

    def convert(self, frame: Any, into: Image | None) -> Image:
        """Return [h, w, 3] u8 BGR, rotated as the stream says; in ``into`` if its shape fits."""
        turn = frame.rotation % 360
        turn = turn if turn % 90 == 0 else 0
        with self._lock:
            chosen = choose_for_video([frame], self._wanted) if is_deep_grey(frame) else None
            self.grey = follow(self.grey, chosen)
            if self.grey is not None:
                stored = to_bgr_of_grey(frame, self.grey, frame.width, frame.height)
            else:
                stored = to_bgr(self._reformatter, frame, frame.width, frame.height)
            height, width = stored.shape[:2]
            if turn % 180 == 90:
                width, height = height, width
            if not fits(into, width, height):
                into = None
            if turn:
                return upright(stored, turn, False, into)
            image = np.empty(stored.shape, np.uint8) if into is None else into
            np.copyto(image, stored)
            return image
