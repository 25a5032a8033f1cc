"""Keeps the times of a camera's pictures continuous across reconnects and clock jumps.

If stamps restart, fall back (MPEG-TS wraps after 26.5 hours) or run ahead, arrival times are used.
"""

from __future__ import annotations

from detector.live.sources.base import Picture

BACK_S = 1.0  # a larger step back means that the clock was set; a smaller one is disorder
AHEAD_S = 10.0  # how far stamps may run ahead of arrival: servers send the last seconds at once


class SteadyStamps:
    """The stamps of one camera over all its connections. For one thread."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._last_s = self._shift_s = 0.0
        self._last_ns = 0
        self._lead_s = 0.0  # how far stamps were ahead of arrival at the last jump

    def move(self, picture: Picture) -> int:
        """Return the picture's continuous pts; as stored until the first jump."""
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
