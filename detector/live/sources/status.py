"""What a feed knows of itself: its state, its counts, and when it tries again. Every method is told
the time, and one lock makes ``facts`` of one moment."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable

from detector.live.sources.base import CONNECTING, ENDED, LIVE, REASONS, STALLED, WAITING, FeedFacts

SECOND = 1_000_000_000  # ns
STALL_S = 2.0  # without a picture, or three of the camera's intervals where that is longer
INTERVALS = 3
LOST_S = 10.0  # of silence, after which a connection is given up and made anew
FROZEN_S = 10.0  # of the same picture, to the last bit: noise and key frames change a live one
RATE_S = 5.0  # over which the camera's rate is told
MOST_ARRIVALS = 1000  # kept for it
BURST_S = 0.05  # pictures that came while the stream was opened are handed out at once
# After so long live, the next failure counts as the first again.
STEADY_S = 2.0

# go2rtc's steps: five tries after 1 s, five after 5 s, ten after 10 s, then once a minute.
STEPS = ((5, 1.0), (10, 5.0), (20, 10.0))
SLOWEST_S = 60.0
LOGIN_S = 300.0  # cameras lock an account after a few wrong passwords
JITTER = 0.2  # of the wait, up and down: cameras behind one switch must not come back in step


class Backoff:
    def __init__(self, random_: Callable[[], float] = random.random) -> None:
        self.failures = 0
        self._random = random_

    def wait_s(self, login: bool = False) -> float:
        """Counts one more failure. ``login``: the camera refused user or password."""
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
        self._listening_ns = now_ns  # silence from before is not the camera's
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

    # States.

    def expect(self, every_s: float, note: str) -> None:
        """A picture each ``every_s`` at most. ``note``: what is odd of the camera; "": nothing."""
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
            if self._state == STALLED:  # it was live, and goes on: as good as a steady one
                self._enter(LIVE, now_ns)
                self._backoff.reset()
            if not self._arrivals:
                self._first_ns = now_ns
            elif now_ns - self._first_ns < BURST_S * SECOND:
                self._arrivals.clear()  # the rate is told without them
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
        """A picture came out whole. ``fingerprint``: equal for equal pictures, if known."""
        with self._lock:
            self._size, self._codec = (width, height), codec
            if fingerprint is not None:
                self._compare(fingerprint, now_ns)
            if self._state == CONNECTING and epoch == self._epoch:
                self._connects += 1
                self._error = None
                self._enter(LIVE, now_ns)

    def fail(self, now_ns: int, error: str, *, login: bool = False) -> int:
        """The connection is gone, or did not come about. Returns when to try again, in ns."""
        with self._lock:
            if self._steady(now_ns):
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

    def listen(self, now_ns: int) -> None:
        """Nobody could hear the camera until now: the process stood still, as by SIGSTOP."""
        with self._lock:
            self._listening_ns = now_ns

    def tick(self, now_ns: int) -> None:
        """Notes what silence means. To be called a few times a second."""
        with self._lock:
            if self._state == LIVE and self._silent_ns(now_ns) > self._stall_ns():
                self._stalls += 1
                self._enter(STALLED, now_ns)
            elif self._state == LIVE and self._steady(now_ns):
                self._backoff.reset()

    def is_lost(self, now_ns: int, start_timeout_s: float) -> bool:
        with self._lock:
            silent = self._silent_ns(now_ns)
            if self._state == CONNECTING:  # a stream of key frames far apart gets its time
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
    def error(self) -> str | None:
        with self._lock:
            return self._error

    # Counts.

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

    # With the lock held.

    def _enter(self, state: str, now_ns: int) -> None:
        if state != self._state:
            self._state, self._since_ns = state, now_ns
        self._next_try_ns = None

    def _steady(self, now_ns: int) -> bool:
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
        """A count over a span: a mean of gaps would say 25 where 24 pictures came in a burst."""
        while len(self._arrivals) > 2 and now_ns - self._arrivals[0] > RATE_S * SECOND:
            self._arrivals.popleft()
        if self._state != LIVE or len(self._arrivals) < 2:
            return None
        span = self._arrivals[-1] - self._arrivals[0]
        return (len(self._arrivals) - 1) * SECOND / span if span else None
