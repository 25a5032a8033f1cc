"""A time on two clocks: rules use the monotonic clock, events the wall clock."""

from __future__ import annotations

from typing import NamedTuple

# A busy machine may pause between reading the two clocks; a larger difference is a clock jump.
JUMP_S = 1.0


class Moment(NamedTuple):
    ns: int  # monotonic
    utc_s: float

    def unix_time_at(self, now: Moment) -> float:
        """Return its Unix time for an event at ``now``, though the wall clock may have jumped."""
        passed_s = (now.ns - self.ns) / 1e9
        jumped_s = now.utc_s - self.utc_s - passed_s
        if abs(jumped_s) <= JUMP_S and self.utc_s <= now.utc_s:
            return self.utc_s
        return now.utc_s - passed_s
