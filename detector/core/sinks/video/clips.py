"""Choose the frames of a video of clips: those near a detection, with a lead on both sides."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from detector.core.types import Frame

MOST_WAITING = 512 << 20  # bytes of pictures: 2 s of 1920x1080 at 40 FPS


class ClipFilter:
    """Holds frames back until a detection follows within ``lead_s``, or none does."""

    def __init__(self, lead_s: Fraction, time_base: Fraction) -> None:
        self.shortened = 0
        self._lead_s, self._time_base = lead_s, time_base
        self._waiting: deque[tuple[Fraction, Frame]] = deque()
        self._bytes = 0
        self._dropped_for_memory = False
        self._until_s: Fraction | None = None  # the end of the clip being written
        self._gap = False  # a frame was omitted after the last one written

    def take(self, frame: Frame, found: bool) -> Iterator[tuple[Frame, bool]]:
        """Yield the frames to write now (copies), in order, and whether a gap precedes each."""
        at_s = frame.pts * self._time_base
        self._forget_before(at_s)
        if found:
            self.shortened += self._dropped_for_memory
            yield from self._release()
            self._until_s = at_s + self._lead_s
            yield self._written(frame)
        elif self._until_s is not None and at_s <= self._until_s:
            yield self._written(frame)
        else:
            self._until_s = None
            self._wait(at_s, frame)

    def _written(self, frame: Frame) -> tuple[Frame, bool]:
        gap, self._gap = self._gap, False
        return frame, gap

    def _release(self) -> Iterator[tuple[Frame, bool]]:
        while self._waiting:
            yield self._written(self._waiting.popleft()[1])
        self._bytes, self._dropped_for_memory = 0, False

    def _wait(self, at_s: Fraction, frame: Frame) -> None:
        if not self._lead_s:
            self._gap = True
            return
        self._waiting.append((at_s, replace(frame, picture=frame.picture.copy())))
        self._bytes += frame.picture.nbytes
        while self._bytes > MOST_WAITING:
            self._drop_first()
            self._dropped_for_memory = True

    def _forget_before(self, at_s: Fraction) -> None:
        """Drop frames that no later detection can be near."""
        while self._waiting and at_s - self._waiting[0][0] > self._lead_s:
            self._drop_first()

    def _drop_first(self) -> None:
        _, frame = self._waiting.popleft()
        self._bytes -= frame.picture.nbytes
        self._gap = True
