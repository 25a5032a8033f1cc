"""Decodes the packets of one camera, and matches pictures with packets."""

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
from detector.live.sources.ffmpeg_log import Ears
from detector.live.sources.packets import End, Received, Stamp

MOST_REORDERED = 16  # pictures that a decoder of H.264 or H.265 may delay
MOST_HELD = 100  # more than any decoder delays
LOOK_EVERY_NS = 500_000_000  # between two checks whether the picture still changes
GRID = 48  # points per side that are compared


def prepare(codec: Any) -> None:
    # Each frame thread would delay by a picture; one core is enough for a camera.
    codec.thread_type = "SLICE"
    codec.thread_count = 1
    codec.flags |= Flags.copy_opaque


class PacketDecoder:
    """Decodes one camera's packets. Each number leaves with a picture, or is dropped as corrupt."""

    def __init__(
        self, camera: str, drop: Callable[[str, int], None], clock: Callable[[], int]
    ) -> None:
        self._camera, self._drop, self._clock = camera, drop, clock
        self._pending: list[int] = []  # a heap of the numbers in the decoder
        self._looked_ns: int | None = None
        self._next_pts = 0
        self._time_base = Fraction(1, 1000)

    def decode(self, received: Received, ears: Ears) -> Iterator[tuple[Picture, Any]]:
        """Yield (picture, PyAV's frame) for all output of this packet. ``ears``: of this thread."""
        codec, stamp = received.codec, received.stamp
        if received.after_gap:
            yield from self.flush(End(stamp.epoch, codec))
        heapq.heappush(self._pending, stamp.number)
        received.packet.opaque = stamp
        ears.heard_damage()  # drop messages about earlier packets
        try:
            frames = codec.decode(received.packet)
        except av.error.FFmpegError:
            self._lose(stamp.number)
            return
        stamp.damaged = ears.heard_damage()
        yield from self._pictures(frames, codec)
        while len(self._pending) > MOST_HELD:  # packets go in, but no pictures come out
            self._lose(self._pending[0])

    def flush(self, end: End) -> Iterator[tuple[Picture, Any]]:
        """Yield the delayed pictures; packets without a picture are lost."""
        # An error: it was empty, or its content is damaged, which is counted below.
        with contextlib.suppress(av.error.FFmpegError):
            yield from self._pictures(end.codec.decode(None), end.codec)
        end.codec.flush_buffers()  # else it accepts no more packets
        self.abandon(CORRUPT)

    def abandon(self, reason: str) -> None:
        self._drop(reason, len(self._pending))
        self._pending.clear()

    def _pictures(self, frames: list[Any], codec: Any) -> Iterator[tuple[Picture, Any]]:
        for frame in frames:
            stamp = frame.opaque
            if not isinstance(stamp, Stamp):
                continue
            number = self._number(stamp.number, bool(codec.has_b_frames))
            if number is None:
                continue  # the second field of a picture, or its second layer
            if frame.is_corrupt or stamp.damaged:
                self._drop(CORRUPT, 1)
                continue
            yield self._picture(frame, stamp, number), frame

    def _number(self, own: int, reordered: bool) -> int | None:
        """Return the picture's number, and count the numbers that can no longer come as lost."""
        oldest = own - MOST_REORDERED if reordered else own
        while self._pending and self._pending[0] < oldest:
            heapq.heappop(self._pending)
            self._drop(CORRUPT, 1)
        return heapq.heappop(self._pending) if self._pending else None

    def _lose(self, number: int) -> None:
        if number in self._pending:
            self._pending.remove(number)
            heapq.heapify(self._pending)
            self._drop(CORRUPT, 1)

    def _picture(self, frame: Any, stamp: Stamp, number: int) -> Picture:
        turned = frame.rotation % 180 == 90
        width, height = frame.width, frame.height
        arrival = Arrival(
            self._camera,
            stamp.epoch,
            stamp.arrived_ns,
            stamp.utc_s,
            self._clock(),
            stamp.captured_s,
        )
        pts = frame.pts if frame.pts is not None else self._next_pts
        self._next_pts = pts + 1
        # Pictures from a flush have no time base.
        self._time_base = frame.time_base or self._time_base
        return Picture(
            number,
            pts,
            self._time_base,
            height if turned else width,
            width if turned else height,
            arrival,
            frame,
        )

    def fingerprint(self, frame: Any, now_ns: int) -> int | None:
        """Return a value equal for equal pictures; None if the last check was too recent."""
        if self._looked_ns is not None and now_ns - self._looked_ns < LOOK_EVERY_NS:
            return None
        self._looked_ns = now_ns
        plane = frame.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
        # Odd steps, so that the points do not all hit the same phase of a regular pattern.
        down, right = plane.height // GRID | 1, plane.line_size // GRID | 1
        return hash(rows[::down, ::right].tobytes())


class Converter:
    def __init__(self, grey: str | GreyRange = AUTO) -> None:
        self._wanted = grey
        self.grey: GreyRange | None = None  # of the last picture
        self._lock = threading.Lock()
        self._reformatter = VideoReformatter()  # reused, to keep its tables

    def convert(self, frame: Any, into: Image | None) -> Image:
        """Return [h, w, 3] u8 BGR, rotated as the stream says; in ``into`` if its shape fits."""
        turn = frame.rotation % 360
        turn = turn if turn % 90 == 0 else 0
        with self._lock:
            found = choose_for_video([frame], self._wanted) if is_deep_grey(frame) else None
            self.grey = follow(self.grey, found)
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
