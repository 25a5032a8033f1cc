"""Time stamps that go on rising where the container's clock overflows."""

from __future__ import annotations

# Ticks after which a format's clock begins anew at 0: MPEG's after 26.5 hours, FLV's after 49 days.
# FFmpeg mends the first overflow, and only if the recording began shortly before it.
ROUNDS = {"mpegts": 1 << 33, "mpeg": 1 << 33, "flv": 1 << 32}


class Clock:
    """Adds a round to each time stamp behind an overflow. The rest stays as stored."""

    def __init__(self, demuxer: str) -> None:
        self._round = ROUNDS.get(demuxer, 0)
        self._passed = 0  # ticks of the rounds that are over
        self._last: int | None = None

    def unwrap(self, pts: int) -> int:
        """The pts of the next frame, as if the clock had more digits."""
        if self._round and self._last is not None:
            if pts + self._passed < self._last - self._round // 2:
                self._passed += self._round
            elif pts + self._passed > self._last + self._round // 2 and self._passed:
                return pts + self._passed - self._round  # a late one, from before the overflow
        self._last = pts + self._passed
        return self._last
