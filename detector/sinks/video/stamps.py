"""The source's time stamps, shifted to start at 0 and forced to rise: containers require both."""

from __future__ import annotations

from fractions import Fraction

# A larger step back means that the clock was reset (several files were concatenated). A smaller one
# means that frames are out of order.
BACK_S = 1


class Stamps:
    """Turns each frame's pts into the pts that is written, both in ticks of the source's time base.

    A frame is placed one nominal duration after the last one, and counted in ``replaced``, if its
    own pts is not later than the last one or is more than ``longest_gap_s`` later (plus the frames
    that ``--stride`` left out). After such a jump the clock continues from there. After a small
    step back the source's own stamps count again as soon as they are ahead.
    """

    def __init__(self, fps: Fraction, time_base: Fraction, longest_gap_s: float) -> None:
        self.nominal = max(1, round(1 / (fps * time_base)))  # ticks per frame
        self._back, self._gap = round(BACK_S / time_base), round(longest_gap_s / time_base)  # ticks
        self.shift = 0  # written = source - shift
        self.last: int | None = None
        self._last_index = 0
        self.duration = self.nominal  # of the last frame, until the next one comes
        self.replaced = 0
        self.went_back = False  # the clock was set back by more than BACK_S

    def place(self, pts: int, index: int) -> int:
        """The pts to write for frame ``index`` of the source."""
        if self.last is None:
            self.shift = pts
            self.last = 0
        else:
            steps = max(1, index - self._last_index)
            self.duration = steps * self.nominal
            self.last = self._after(self.last, pts)
        self._last_index = index
        return self.last

    def _after(self, last: int, pts: int) -> int:
        gap = pts - self.shift - last
        if 0 < gap <= self._gap + self.duration:
            return last + gap
        self.replaced += 1
        placed = last + self.duration
        if gap > 0 or -gap > self._back:
            self.shift = pts - placed
            self.went_back = self.went_back or gap < 0
        return placed
