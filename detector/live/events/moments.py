"""A moment by two clocks: decisions use the monotonic one, events tell the wall's."""

from __future__ import annotations

from typing import NamedTuple

# Between two looks at the two clocks a busy machine may stand still; a jump is more than that.
JUMP_S = 1.0


class Moment(NamedTuple):
    ns: int  # monotonic
    utc_s: float

    def told_at(self, now: Moment) -> float:
        """This moment's Unix time, for an event of ``now``."""
        passed_s = (now.ns - self.ns) / 1e9
        jumped_s = now.utc_s - self.utc_s - passed_s
        if abs(jumped_s) <= JUMP_S and self.utc_s <= now.utc_s:
            return self.utc_s
        return now.utc_s - passed_s
