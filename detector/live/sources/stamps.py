"""The time of a camera's pictures, which goes on through new connections and jumps of its clock.
Where stamps begin anew, fall back (MPEG-TS wraps after 26.5 hours) or run ahead, arrival counts."""

from __future__ import annotations

from detector.live.sources.base import Picture

BACK_S = 1.0  # a larger step back is a clock that was set; a smaller one is disorder
AHEAD_S = 10.0  # by which stamps may run ahead of arrival: servers send the last seconds at once


class SteadyStamps:
    """Of one camera, in all its connections. For one thread."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._last_s = self._shift_s = 0.0
        self._last_ns = 0
        self._lead_s = 0.0  # of the stamps before arrival, when they were believed last

    def move(self, picture: Picture) -> int:
        """The picture's pts on a line of its own; as stored until the first jump."""
        arrival, base = picture.arrival, picture.time_base
        time_s = float(picture.pts * base) + self._shift_s
        lead_s = time_s - arrival.arrived_ns / 1e9
        is_new = arrival.epoch != self._epoch
        if is_new or time_s < self._last_s - BACK_S or lead_s > self._lead_s + AHEAD_S:
            if self._epoch is not None:
                passed_s = max(0, arrival.arrived_ns - self._last_ns) / 1e9
                self._shift_s += self._last_s + passed_s - time_s
                time_s = self._last_s + passed_s
            self._epoch, self._lead_s = arrival.epoch, time_s - arrival.arrived_ns / 1e9
        self._last_s, self._last_ns = time_s, arrival.arrived_ns
        return picture.pts + round(self._shift_s / base)
