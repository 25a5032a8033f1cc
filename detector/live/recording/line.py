"""Maps the timestamps (stamps) of a connection onto arrival times. The results always increase.

Stamps may start anywhere, be missing, jump when a camera sets its clock, and restart. Successive
results are as far apart as their stamps, if that is plausible, or else as their arrival times.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from detector.live.recording.samples import NS, USUAL_NS

BACK_NS = NS  # if a stamp steps back further, the clock was set
AHEAD_NS = 10 * NS  # if stamps advance by this much more than arrivals, the clock was set
REORDER_NS = 10 * NS  # longest pts - dts; no decoder delays more


@dataclass(slots=True)
class _TrackPosition:
    """A track's last sample (time, arrival, duration), and the offset of its stamps, if known."""

    last_ns: int
    arrived_ns: int
    step_ns: int
    shift_ns: int | None


class ArrivalLine:
    """The time line of one connection. All tracks share an offset until a track's stamps jump."""

    def __init__(self) -> None:
        self._shift_ns: int | None = None
        self._positions: dict[int, _TrackPosition] = {}

    def place(
        self,
        track: int,
        pts: int | None,
        dts: int | None,
        time_base: Fraction,
        duration_ns: int,
        arrived_ns: int,
    ) -> tuple[int, int]:
        """Return (pts, dts) in ns for ticks of ``time_base``; dts increases, pts >= dts."""
        tick_ns = max(1, -int(-NS * time_base // 1))
        step_ns = duration_ns or USUAL_NS
        own_pts, own_dts = _to_ns(pts, time_base), _to_ns(dts, time_base)
        position = self._positions.get(track)
        if own_dts is None and own_pts is not None and position is None:
            own_dts = own_pts
        if position is None:
            position = self._positions[track] = self._begin(own_dts, arrived_ns, step_ns)
            dts_ns = position.last_ns
        else:
            dts_ns = self._next_dts(position, own_pts, own_dts, arrived_ns, tick_ns)
            position.step_ns = duration_ns or min(max(dts_ns - position.last_ns, tick_ns), NS)
            position.last_ns, position.arrived_ns = dts_ns, arrived_ns
        pts_ns = dts_ns
        if own_pts is not None and position.shift_ns is not None:
            pts_ns = own_pts + position.shift_ns
            if not dts_ns <= pts_ns <= dts_ns + REORDER_NS:
                pts_ns = dts_ns
        return pts_ns, dts_ns

    def _begin(self, own_dts: int | None, arrived_ns: int, step_ns: int) -> _TrackPosition:
        if own_dts is None:
            return _TrackPosition(arrived_ns, arrived_ns, step_ns, None)
        if self._shift_ns is None or abs(own_dts + self._shift_ns - arrived_ns) > AHEAD_NS:
            shift = arrived_ns - own_dts  # the first track, or one with its own clock
            self._shift_ns = shift if self._shift_ns is None else self._shift_ns
        else:
            shift = self._shift_ns
        return _TrackPosition(own_dts + shift, arrived_ns, step_ns, shift)

    def _next_dts(
        self, at: _TrackPosition, pts: int | None, dts: int | None, arrived_ns: int, tick_ns: int
    ) -> int:
        if dts is None:
            next_ns = at.last_ns + at.step_ns
            if pts is not None and at.shift_ns is not None:
                next_ns = min(next_ns, pts + at.shift_ns)
            return max(next_ns, at.last_ns + tick_ns)
        if at.shift_ns is None:  # the first stamp of this track
            at.shift_ns = at.last_ns + at.step_ns - dts
            if self._shift_ns is None:
                self._shift_ns = at.shift_ns
            return dts + at.shift_ns
        step = dts + at.shift_ns - at.last_ns
        passed = max(arrived_ns - at.arrived_ns, 0)
        if step <= -BACK_NS or step > passed + AHEAD_NS:
            step = max(passed, tick_ns)
            at.shift_ns = at.last_ns + step - dts
        elif step < tick_ns // 2 + 1:
            step = tick_ns
        return at.last_ns + step


def _to_ns(ticks: int | None, time_base: Fraction) -> int | None:
    """Convert to whole nanoseconds, rounded so that the ticks can be recovered."""
    return None if ticks is None else round(ticks * time_base * NS)
