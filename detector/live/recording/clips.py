"""Clips: records only the video around detections. A ring buffer holds the latest packets, because
detections arrive later than their packets."""

from __future__ import annotations

from collections import deque

from detector.live.recording.samples import LATEST_NS, NS, VIDEO, Sample, Tracks
from detector.live.recording.segments import Segments

RING_BYTES = 64_000_000  # a minute at 8 Mbit/s


class Clips:
    """Writes the samples from ``before_s`` before a detection to ``after_s`` after it."""

    def __init__(self, segments: Segments, before_s: float, after_s: float) -> None:
        self._segments = segments
        self._before_ns, self._after_ns = round(before_s * NS), round(after_s * NS)
        self._ring: deque[Sample] = deque()
        self._bytes = 0
        self._next = 0  # ring index of the sample that the open clip gets next
        self._until_ns: int | None = None  # arrival of the last sample of the open clip
        self._result_ns = 0  # arrival of the newest picture with a result
        self.short = 0  # clips that begin too late, because the ring was full

    def begin(self, tracks: Tracks) -> None:
        """Begin a connection with ``tracks``: end the open clip and clear the ring."""
        self._end_clip()
        self._ring.clear()
        self._bytes = 0
        self._segments.begin(tracks)

    def write(self, sample: Sample) -> None:
        self._ring.append(sample)
        self._bytes += len(sample.data)
        self._trim(sample.arrived_ns)
        self._write_due()
        # End the clip if no results arrive for a long time.
        if self._until_ns is not None and sample.arrived_ns > self._until_ns + LATEST_NS:
            self._end_clip()

    def add_result(self, arrived_ns: int, in_clip: bool) -> None:
        """Record whether the picture that arrived at ``arrived_ns`` belongs in a clip."""
        self._result_ns = max(self._result_ns, arrived_ns)
        if in_clip:
            until = arrived_ns + self._after_ns
            if self._until_ns is None:
                self._start_clip(arrived_ns - self._before_ns)
                self._until_ns = until
            self._until_ns = max(self._until_ns, until)
            self._write_due()
        elif self._until_ns is not None and self._result_ns > self._until_ns:
            self._end_clip()

    def _start_clip(self, from_ns: int) -> None:
        """Start a clip at the last key frame that arrived by ``from_ns``, or else at the first."""
        first: int | None = None
        for place, sample in enumerate(self._ring):
            if sample.track == VIDEO and sample.key:
                if first is not None and sample.arrived_ns > from_ns:
                    break
                first = place
        if first is None:
            first = len(self._ring)
        elif self._bytes >= RING_BYTES and self._ring[first].arrived_ns > from_ns:
            self.short += 1
        self._next = first

    def _write_due(self) -> None:
        if self._until_ns is None:
            return
        while self._next < len(self._ring):
            sample = self._ring[self._next]
            if sample.arrived_ns > self._until_ns:
                return
            self._segments.write(sample)
            self._next += 1

    def _end_clip(self) -> None:
        self._write_due()
        if self._until_ns is not None:
            self._until_ns = None
            self._segments.finish()

    def _trim(self, now_ns: int) -> None:
        """Drop groups of pictures that are too old for any clip, or exceed the size limit."""
        oldest_ns = now_ns - self._before_ns - LATEST_NS
        while self._ring:
            full = self._bytes > RING_BYTES
            second = self._second_key() if full or self._ring[0].arrived_ns < oldest_ns else None
            if second is None:
                if not full:
                    return
                second = len(self._ring)  # the only group is too large
            elif not full and self._ring[second].arrived_ns > oldest_ns:
                return  # a clip from ``oldest_ns`` needs the first group
            for _ in range(second):
                self._bytes -= len(self._ring.popleft().data)
            self._next = max(self._next - second, 0)

    def _second_key(self) -> int | None:
        for place, sample in enumerate(self._ring):
            if place and sample.track == VIDEO and sample.key:
                return place
        return None

    def finish(self) -> None:
        """End the connection's clip. If none is open, keep the ring for late detections."""
        if self._until_ns is not None:
            self._end_clip()
            self._ring.clear()
            self._bytes = self._next = 0
        self._segments.finish()
