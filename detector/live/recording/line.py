"""Maps the stamps of a connection onto arrival times, so that they always increase.

A stream's stamps start anywhere, are sometimes missing, jump when a camera sets its clock, and
restart with a looped file. The result keeps the stream's own steps if they are plausible, and else
uses the steps of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from detector.live.recording.samples import NS, USUAL_NS

BACK_NS = NS  # a larger step back means that the clock was set; a smaller one is disorder
AHEAD_NS = 10 * NS  # a step this much longer than the arrival's means that the clock was set
REORDER_NS = 10 * NS  # longest pts - dts; no decoder delays more


@dataclass(slots=True)
class _TrackPosition:
    """The state of a track: its last sample, and the offset from its own clock."""

    last_ns: int
    arrived_ns: int
    step_ns: int
    shift_ns: int | None


class ArrivalLine:
    """The time line of one connection. Tracks share a clock until one of them jumps."""

    def __init__(self) -> None:
        self._shift_ns: int | None = None
        self._places: dict[int, _TrackPosition] = {}

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
        place = self._places.get(track)
        if own_dts is None and own_pts is not None and place is None:
            own_dts = own_pts
        if place is None:
            place = self._begin(track, own_dts, arrived_ns, step_ns)
            placed = place.last_ns
        else:
            placed = self._after(place, own_pts, own_dts, arrived_ns, tick_ns)
            place.step_ns = duration_ns or min(max(placed - place.last_ns, tick_ns), NS)
            place.last_ns, place.arrived_ns = placed, arrived_ns
        shown = placed
        if own_pts is not None and place.shift_ns is not None:
            shown = own_pts + place.shift_ns
            if not placed <= shown <= placed + REORDER_NS:
                shown = placed
        return shown, placed

    def _begin(self, track: int, own: int | None, arrived_ns: int, step_ns: int) -> _TrackPosition:
        if own is None:
            return self._keep(track, _TrackPosition(arrived_ns, arrived_ns, step_ns, None))
        if self._shift_ns is None or abs(own + self._shift_ns - arrived_ns) > AHEAD_NS:
            shift = arrived_ns - own  # the first track, or a separate clock
            self._shift_ns = shift if self._shift_ns is None else self._shift_ns
        else:
            shift = self._shift_ns
        return self._keep(track, _TrackPosition(own + shift, arrived_ns, step_ns, shift))

    def _keep(self, track: int, place: _TrackPosition) -> _TrackPosition:
        self._places[track] = place
        return place

    def _after(
        self, place: _TrackPosition, pts: int | None, own: int | None, arrived_ns: int, tick_ns: int
    ) -> int:
        if own is None:
            placed = place.last_ns + place.step_ns
            if pts is not None and place.shift_ns is not None:
                placed = min(placed, pts + place.shift_ns)
            return max(placed, place.last_ns + tick_ns)
        if place.shift_ns is None:  # the first stamp of this track
            place.shift_ns = place.last_ns + place.step_ns - own
            if self._shift_ns is None:
                self._shift_ns = place.shift_ns
            return own + place.shift_ns
        step = own + place.shift_ns - place.last_ns
        passed = max(arrived_ns - place.arrived_ns, 0)
        if step <= -BACK_NS or step > passed + AHEAD_NS:
            step = max(passed, tick_ns)
            place.shift_ns = place.last_ns + step - own
        elif step < tick_ns // 2 + 1:
            step = tick_ns
        return place.last_ns + step


def _to_ns(ticks: int | None, time_base: Fraction) -> int | None:
    """Convert to whole nanoseconds, rounded so that the ticks can be recovered."""
    return None if ticks is None else round(ticks * time_base * NS)
