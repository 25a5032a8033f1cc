"""Select the frames for clips: those at most ``lead_s`` before or after a detection."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from detector.core.types import Frame

MOST_HELD = 512 << 20  # bytes of pictures: 2 s of 1920x1080 at 40 FPS


class ClipFilter:
    """Between clips, holds frames until a detection follows; drops those older than ``lead_s``."""

    def __init__(self, lead_s: Fraction, time_base: Fraction) -> None:
        self.shortened = 0  # clips whose lead was cut to save memory
        self._lead_s, self._time_base = lead_s, time_base
        self._held: deque[tuple[Fraction, Frame]] = deque()
        self._bytes = 0
        self._dropped_for_memory = False
        self._until_s: Fraction | None = None  # the end of the clip being written
        self._gap = False  # a frame was dropped after the last one written

    def take(self, frame: Frame, has_detections: bool) -> Iterator[tuple[Frame, bool]]:
        """Yield the frames to write now, in order, and whether a gap precedes each."""
        at_s = frame.pts * self._time_base
        while self._held and at_s - self._held[0][0] > self._lead_s:
            self._drop_first()
        if has_detections:
            self.shortened += self._dropped_for_memory
            yield from self._release_held()
            self._until_s = at_s + self._lead_s
            yield self._mark_gap(frame)
        elif self._until_s is not None and at_s <= self._until_s:
            yield self._mark_gap(frame)
        else:
            self._until_s = None
            self._hold(at_s, frame)

    def _mark_gap(self, frame: Frame) -> tuple[Frame, bool]:
        gap, self._gap = self._gap, False
        return frame, gap

    def _release_held(self) -> Iterator[tuple[Frame, bool]]:
        while self._held:
            yield self._mark_gap(self._held.popleft()[1])
        self._bytes, self._dropped_for_memory = 0, False

    def _hold(self, at_s: Fraction, frame: Frame) -> None:
        if not self._lead_s:
            self._gap = True
            return
        self._held.append((at_s, replace(frame, picture=frame.picture.copy())))
        self._bytes += frame.picture.nbytes
        while self._bytes > MOST_HELD:
            self._drop_first()
            self._dropped_for_memory = True

    def _drop_first(self) -> None:
        _, frame = self._held.popleft()
        self._bytes -= frame.picture.nbytes
        self._gap = True
