"""Shift the source's time stamps to start at 0 and force them to rise, as containers require."""

from __future__ import annotations

from collections import deque
from fractions import Fraction


class Stamps:
    """Converts each frame's pts in the source to its pts in the output, in ticks of ``time_base``.

    If a pts is not later than the previous one, or more than ``longest_gap_s`` later, it is
    replaced by the end of the previous frame's nominal duration (counted in ``replaced``).

    ``reach``: the most ticks that ``reach_frames`` consecutive frames may span. If they would span
    more, the last pause is cut, so that they span 3/4 of ``reach`` (counted in ``shortened``).
    """

    def __init__(
        self,
        fps: Fraction,
        time_base: Fraction,
        longest_gap_s: float,
        reach: int | None = None,
        reach_frames: int = 2,
    ) -> None:
        self.nominal = max(1, round(1 / (fps * time_base)))  # ticks per frame
        self._gap = round(longest_gap_s / time_base)  # ticks
        self.shift = 0  # written = source - shift
        self.last: int | None = None
        self._last_index = 0
        self.duration = self.nominal  # duration of the last frame
        self.replaced = 0
        self._reach = reach
        self._recent: deque[int] = deque(maxlen=reach_frames - 1)
        self.shortened = 0

    def stamp(self, pts: int, index: int, joined: bool = False) -> int:
        """Return the pts to write for frame ``index``. ``joined``: close the gap before it."""
        if self.last is None:
            self.shift = pts
            self.last = 0
        elif joined:
            self.last += self.duration
            self.shift = pts - self.last
        else:
            self.duration = max(1, index - self._last_index) * self.nominal
            self.last = self._limit_reach(self._follow(self.last, pts), pts)
        self._recent.append(self.last)
        self._last_index = index
        return self.last

    def _limit_reach(self, placed: int, pts: int) -> int:
        if self._reach is None or placed - self._recent[0] <= self._reach:
            return placed
        self.shortened += 1
        nearer = max(self._recent[-1] + self.duration, self._recent[0] + self._reach * 3 // 4)
        self.shift = pts - nearer
        return nearer

    def _follow(self, last: int, pts: int) -> int:
        gap = pts - self.shift - last
        if 0 < gap <= self._gap + self.duration:
            return last + gap
        self.replaced += 1
        placed = last + self.duration
        if gap > 0:
            self.shift = pts - placed
        return placed
