"""Prints the state changes of cameras during a live run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from detector.live.sources.base import CONNECTING, LAG, LIVE, WAITING, FeedFacts

SECOND = 1_000_000_000  # ns
CAUGHT_UP_S = 60.0  # after this time without drops, the next drop is reported again


class CameraLines:
    """Passes new states to ``state``, and problems to ``say``. ``max_age_s``: age above which
    ``--live every`` drops pictures; None with other modes. Not thread-safe."""

    def __init__(
        self, state: Callable[[str], None], say: Callable[[str], None], max_age_s: float | None
    ) -> None:
        self._state, self._say, self._max_age_s = state, say, max_age_s
        self._last_lines: dict[str, str] = {}  # camera -> its last line
        self._lag: dict[str, tuple[int, int | None]] = {}  # dropped pictures, time of the last drop

    def has_reported(self, name: str, error: str) -> bool:
        return self._last_lines.get(name) == error

    def report(self, cameras: Mapping[str, FeedFacts], now_ns: int) -> None:
        for name, facts in cameras.items():
            self._report_state(name, facts, now_ns)
            if self._max_age_s is not None:
                self._report_lag(name, facts.dropped.get(LAG, 0), now_ns)

    def _report_state(self, name: str, facts: FeedFacts, now_ns: int) -> None:
        size = f"{facts.width}x{facts.height} {facts.codec}"
        size = f"{size}; {facts.note}" if facts.note else size
        now = f"live, {size}" if facts.state == LIVE else facts.error or facts.state
        if facts.state != CONNECTING and self._last_lines.get(name) != now:
            self._last_lines[name] = now
            retry = ""
            if facts.state == WAITING and facts.next_try_ns is not None:
                retry = f"; retrying in {max(1, round((facts.next_try_ns - now_ns) / SECOND))} s"
            self._state(f"{name}: {now}{retry}")

    def _report_lag(self, name: str, dropped: int, now_ns: int) -> None:
        before, last_ns = self._lag.get(name, (0, None))
        if dropped <= before:
            return
        self._lag[name] = (dropped, now_ns)
        if last_ns is None or now_ns - last_ns > CAUGHT_UP_S * SECOND:
            self._say(
                f"{name}: detection cannot keep up: groups of pictures older than --max-age "
                f"{self._max_age_s:g} s are dropped; set a lower rate in cameras.yaml, such as "
                '"rate: 5", or use --live latest'
            )
