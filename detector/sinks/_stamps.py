"""The source's pts, moved to 0 and made to rise: what a container insists on."""

from __future__ import annotations

from fractions import Fraction

BACK_S = 1  # more than this is a clock that was set anew (files put one behind the other), not frames in disorder


class Stamps:
    """Turns each frame's pts into the pts that is written, both in ticks of the source's time base.

    A frame that does not come after the last one, or more than ``longest_gap_s`` after it (on top of the frames that
    ``--stride`` left out), is put one nominal duration after it and counted in ``replaced``. After a jump the clock
    goes on from there; after a small step back the source's own stamps count again as soon as they are ahead.
    """

    def __init__(self, fps: Fraction, time_base: Fraction, longest_gap_s: float) -> None:
        self.nominal = max(1, round(1 / (fps * time_base)))  # ticks per frame
        self._back, self._gap = round(BACK_S / time_base), round(longest_gap_s / time_base)  # ticks
        self.shift = 0  # written = source - shift
        self.last: int | None = None
        self._last_index = 0
        self.duration = self.nominal  # of the last frame, until the next one comes
        self.replaced = 0
        self.went_back = False  # the clock itself was set back, by more than a jump

    def place(self, pts: int, index: int) -> int:
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
