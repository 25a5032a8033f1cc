"""The state and counts of a feed, and its retries. Callers pass the time."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable

from detector.live.sources.base import CONNECTING, ENDED, LIVE, REASONS, STALLED, WAITING, FeedFacts

SECOND = 1_000_000_000  # ns
# A camera stalls if no picture arrives for this time and for this many frame intervals.
STALL_S, INTERVALS = 2.0, 3
LOST_S = 10.0  # reconnect after this time without a picture
FROZEN_S = 10.0  # frozen after this time of identical pictures; noise makes live pictures differ
RATE_S = 5.0  # the camera's rate is measured over this time
MOST_ARRIVALS = 1000  # arrivals kept to measure the rate
BURST_S = 0.05  # pictures this soon after the first were buffered while the connection opened
STEADY_S = 2.0  # if a camera was live for this long, its next failure counts as the first again

# go2rtc's steps: five retries after 1 s, five after 5 s, ten after 10 s, then one per minute.
STEPS = ((5, 1.0), (10, 5.0), (20, 10.0))
SLOWEST_S = 60.0
LOGIN_S = 300.0  # wait after a refused login, because cameras lock accounts
JITTER = 0.2  # waits vary by this share, so that cameras do not retry at the same time


class Backoff:
    def __init__(self, random_: Callable[[], float] = random.random) -> None:
        self.failures = 0
        self._random = random_

    def wait_s(self, login: bool = False) -> float:
        """Count a failure; return how long to wait. ``login``: the camera refused the login."""
        self.failures += 1
        step = next((wait for most, wait in STEPS if self.failures <= most), SLOWEST_S)
        return (LOGIN_S if login else step) * (1 + JITTER * (2 * self._random() - 1))

    def reset(self) -> None:
        self.failures = 0


class Status:
    def __init__(self, now_ns: int, backoff: Backoff | None = None) -> None:
        self._lock = threading.Lock()
        self._backoff = backoff or Backoff()
        self._state, self._since_ns = CONNECTING, now_ns
        self._received = self._taken = self._connects = self._stalls = 0
        self._epoch = 0
        self._first_ns = now_ns  # arrival of this connection's first picture
        self._listening_ns = now_ns  # silence before this time is ignored
        self._dropped: dict[str, int] = {}
        self._next_try_ns: int | None = None
        self._error: str | None = None
        self._size: tuple[int, int] | None = None
        self._codec = ""
        self._arrivals: deque[int] = deque(maxlen=MOST_ARRIVALS)
        self._fingerprint: object = None
        self._same_since_ns = now_ns
        self._frozen = False
        self._interval_ns, self._note = 0.0, ""

    def expect(self, every_s: float, note: str) -> None:
        """Expect at most one picture per ``every_s``. ``note``: a remark for the user, or ""."""
        with self._lock:
            self._interval_ns, self._note = every_s * SECOND, note

    def connect(self, now_ns: int) -> int:
        with self._lock:
            self._enter(CONNECTING, now_ns)
            self._since_ns = now_ns
            self._arrivals.clear()
            self._fingerprint, self._frozen = None, False
            self._epoch = self._connects + 1
            return self._epoch

    def arrive(self, now_ns: int) -> int:
        with self._lock:
            if self._state == STALLED:  # the connection was steady, because it survived a stall
                self._enter(LIVE, now_ns)
                self._backoff.reset()
            if not self._arrivals:
                self._first_ns = now_ns
            elif now_ns - self._first_ns < BURST_S * SECOND:
                self._arrivals.clear()  # the burst would distort the rate
            self._arrivals.append(now_ns)
            self._received += 1
            return self._received - 1

    def show(
        self,
        now_ns: int,
        epoch: int,
        width: int,
        height: int,
        codec: str = "",
        fingerprint: object = None,
    ) -> None:
        """Record a decoded picture. ``fingerprint``: a value that is equal for equal pictures."""
        with self._lock:
            self._size, self._codec = (width, height), codec
            if fingerprint is not None:
                self._compare(fingerprint, now_ns)
            if self._state == CONNECTING and epoch == self._epoch:
                self._connects += 1
                self._error = None
                self._enter(LIVE, now_ns)

    def fail(self, now_ns: int, error: str, *, login: bool = False) -> int:
        """Record a lost or failed connection; return when to retry, in ns."""
        with self._lock:
            if self._is_steady(now_ns):
                self._backoff.reset()
            wait_ns = round(self._backoff.wait_s(login) * SECOND)
            self._enter(WAITING, now_ns)
            self._next_try_ns, self._error = now_ns + wait_ns, error
            self._arrivals.clear()
            self._frozen, self._fingerprint = False, None
            return now_ns + wait_ns

    def end(self, now_ns: int, error: str | None = None) -> None:
        with self._lock:
            self._enter(ENDED, now_ns)
            self._error = error or self._error

    def ignore_silence(self, now_ns: int) -> None:
        """Ignore the silence until now, because the process was suspended (SIGSTOP)."""
        with self._lock:
            self._listening_ns = now_ns

    def tick(self, now_ns: int) -> None:
        """Detect stalls."""
        with self._lock:
            if self._state == LIVE and self._silent_ns(now_ns) > self._stall_ns():
                self._stalls += 1
                self._enter(STALLED, now_ns)
            elif self._state == LIVE and self._is_steady(now_ns):
                self._backoff.reset()

    def is_lost(self, now_ns: int, start_timeout_s: float) -> bool:
        with self._lock:
            silent = self._silent_ns(now_ns)
            if self._state == CONNECTING:  # the first key frame may come late
                since_ns = max(self._since_ns, self._listening_ns)
                return now_ns - since_ns > start_timeout_s * SECOND
            return self._state == STALLED and silent > max(LOST_S * SECOND, 2 * self._stall_ns())

    def has_arrivals(self) -> bool:
        with self._lock:
            return bool(self._arrivals)

    @property
    def state(self) -> str:
        with self._lock:
            return self._state

    @property
    def epoch(self) -> int:
        with self._lock:
            return self._epoch

    @property
    def taken(self) -> int:
        with self._lock:
            return self._taken

    def take(self) -> None:
        with self._lock:
            self._taken += 1

    def drop(self, reason: str, pictures: int = 1) -> None:
        if reason not in REASONS:
            raise ValueError(f"unknown reason {reason!r}; known reasons: {', '.join(REASONS)}")
        if pictures:
            with self._lock:
                self._dropped[reason] = self._dropped.get(reason, 0) + pictures

    def facts(self, now_ns: int) -> FeedFacts:
        with self._lock:
            width, height = self._size or (None, None)
            return FeedFacts(
                state=self._state,
                since_ns=self._since_ns,
                received=self._received,
                taken=self._taken,
                dropped=dict(self._dropped),
                connects=self._connects,
                reconnects=max(0, self._connects - 1),
                stalls=self._stalls,
                frozen=self._frozen,
                next_try_ns=self._next_try_ns,
                error=self._error,
                width=width,
                height=height,
                fps=self._fps(now_ns),
                codec=self._codec,
                note=self._note,
            )

    # Callers of these methods hold the lock.

    def _enter(self, state: str, now_ns: int) -> None:
        if state != self._state:
            self._state, self._since_ns = state, now_ns
        self._next_try_ns = None

    def _is_steady(self, now_ns: int) -> bool:
        lasted = self._state == LIVE and now_ns - self._since_ns >= STEADY_S * SECOND
        return lasted or self._state == STALLED

    def _silent_ns(self, now_ns: int) -> int:
        last_ns = self._arrivals[-1] if self._arrivals else self._since_ns
        return now_ns - max(last_ns, self._listening_ns)

    def _stall_ns(self) -> float:
        interval = self._interval_ns
        if len(self._arrivals) > 1:
            measured = (self._arrivals[-1] - self._arrivals[0]) / (len(self._arrivals) - 1)
            interval = max(interval, measured)
        return max(STALL_S * SECOND, INTERVALS * interval)

    def _compare(self, fingerprint: object, now_ns: int) -> None:
        if fingerprint != self._fingerprint:
            self._fingerprint, self._same_since_ns, self._frozen = fingerprint, now_ns, False
        else:
            self._frozen = now_ns - self._same_since_ns >= FROZEN_S * SECOND

    def _fps(self, now_ns: int) -> float | None:
        while len(self._arrivals) > 2 and now_ns - self._arrivals[0] > RATE_S * SECOND:
            self._arrivals.popleft()
        if self._state != LIVE or len(self._arrivals) < 2:
            return None
        span = self._arrivals[-1] - self._arrivals[0]
        return (len(self._arrivals) - 1) * SECOND / span if span else None
