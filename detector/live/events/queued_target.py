"""The base class of receivers outside the process: a thread, a bounded queue, retries with
exponential back-off, and a count of lost events."""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from collections.abc import Callable

from detector.core.errors.secrets import redact
from detector.live.base import Event

ROOM = 1000  # length of the queue; when it is full, the oldest event is dropped
TRIES = 5
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # between tries; doubled after each
LAST_MOMENT_S = 1.0  # time to deliver queued events when the run ends


class TryAgainError(Exception):
    """Delivery failed, but may succeed later."""


class RefusedError(Exception):
    """The receiver will never accept this event, so retries are useless."""


def explain(error: BaseException) -> str:
    """Say why a connection failed, without secrets."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate could not be verified ({error.verify_message}); give the "
            "certificate of its authority: SSL_CERT_FILE=ca.pem"
        )
    return redact(getattr(error, "strerror", "") or str(error) or type(error).__name__)


class QueuedTarget:
    """Delivers events one after the other. A subclass implements ``deliver``."""

    name = ""
    accepts: Callable[[Event], bool] = staticmethod(lambda event: True)

    def __init__(self, *, notice: Callable[[str], None] = lambda _: None) -> None:
        """``notice`` prints a line when deliveries begin to fail, and when they work again."""
        self._notice = notice
        self.failing = False
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._lost = 0
        self._in_flight = False
        self._thread = threading.Thread(
            target=self._run, name=f"detect-video {self.name}", daemon=True
        )

    def deliver(self, event: Event) -> None:
        """Deliver one event. Raises TryAgainError or RefusedError; must end within seconds."""
        raise NotImplementedError

    def send(self, event: Event) -> None:
        if not self.accepts(event):
            return
        with self._changed:
            if self._closing.is_set():
                self._lost += 1
                return
            if self._thread.ident is None:
                self._thread.start()
            if len(self._waiting) >= ROOM:
                self._waiting.popleft()
                self._lost += 1
            self._waiting.append(event)
            self._changed.notify()

    def lost(self) -> int:
        with self._changed:
            return self._lost

    def close(self) -> None:
        """Deliver queued events for up to ``LAST_MOMENT_S``; count the rest as lost."""
        deadline = time.monotonic() + LAST_MOMENT_S
        with self._changed:
            while (
                (self._waiting or self._in_flight)
                and not self.failing
                and (left := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(left)
            self._closing.set()
            self._lost += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))

    def _run(self) -> None:
        while (event := self._next()) is not None:
            delivered = self._try(event)
            with self._changed:
                self._in_flight = False
                self._lost += not delivered
                self._changed.notify_all()

    def _next(self) -> Event | None:
        with self._changed:
            while not self._waiting and not self._closing.is_set():
                self._changed.wait()
            if not self._waiting:
                return None
            self._in_flight = True
            return self._waiting.popleft()

    def _try(self, event: Event) -> bool:
        pause = PAUSE_S
        for number in range(1, TRIES + 1):
            try:
                self.deliver(event)
            except RefusedError as error:
                self._fail(str(error))
                return False
            except TryAgainError as error:
                self._fail(str(error))
                if number == TRIES or self._closing.wait(pause):
                    return False
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                if self.failing:
                    self._notice(f"{self.name}: delivery of events works again")
                self.failing = False
                return True
        return False

    def _fail(self, why: str) -> None:
        if not self.failing:
            self.failing = True
            self._notice(f"{self.name}: {why}")
        with self._changed:
            self._changed.notify_all()
