"""The base class of all feeds: its threads, slot and status."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

from detector.core.timeline.timeline import OffTimeline, Timeline
from detector.live.sources.base import Camera, Feed, FeedFacts, PacketListener, Picture, Terms
from detector.live.sources.slot import Slot
from detector.live.sources.status import Status

TICK_S = 0.2  # between checks for stalls


_running: weakref.WeakSet[ThreadedFeed] = weakref.WeakSet()


@atexit.register
def _stop_running() -> None:
    """Stop all feeds before Python exits: an FFmpeg callback during the exit would crash it."""
    feeds = list(_running)
    for feed in feeds:
        feed.stop(0)  # signal all feeds before waiting for any
    for feed in feeds:
        feed.stop()


class ThreadedFeed(Feed):
    """A feed whose threads run ``jobs``. ``clock``: perf_counter_ns; ``utc``: Unix seconds."""

    def __init__(
        self,
        camera: Camera,
        terms: Terms | None = None,
        timeline: Timeline | None = None,
        wake: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        utc: Callable[[], float] = time.time,
        status: Status | None = None,
    ) -> None:
        self.camera = camera
        self.terms = terms or Terms()
        self.timeline: Timeline | OffTimeline = timeline or OffTimeline()
        self.wake, self.clock, self.utc = wake, clock, utc
        self.status = status or Status(clock())
        self.slot = Slot(not self.terms.every, self.terms.max_age_s, self.status.drop, camera.rate)
        self.stopping = threading.Event()
        self.listeners: list[PacketListener] = []
        self._threads: list[threading.Thread] = []

    def jobs(self) -> dict[str, Callable[[], None]]:
        """Return the functions to run, each in its own thread: thread's name -> function."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Make blocked threads continue, so that they see ``stopping``."""

    def end(self) -> None:
        """Clean up, once, after the last thread has ended."""

    def start(self) -> None:
        for name, job in self.jobs().items():
            thread = threading.Thread(
                target=self._run, args=(job,), name=f"{self.camera.name} {name}", daemon=True
            )
            self._threads.append(thread)
        _running.add(self)
        for thread in self._threads:
            thread.start()

    def take(self) -> Picture | None:
        picture = self.slot.take(self.clock())
        if picture is not None:
            self.status.take()
        return picture

    def waiting(self) -> int:
        return len(self.slot)

    def facts(self) -> FeedFacts:
        return self.status.facts(self.clock())

    def listen(self, listener: PacketListener) -> None:
        self.listeners.append(listener)

    def stop(self, timeout_s: float = 1.0) -> bool:
        self.stopping.set()
        self.interrupt()
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        self.slot.close()
        ended = not any(thread.is_alive() for thread in self._threads)
        self.status.end(self.clock())
        if ended:
            _running.discard(self)
        if ended and self._threads:
            self._threads = []
            self.end()
        self.wake()
        return ended

    def _run(self, job: Callable[[], None]) -> None:
        """Run a job. A bug in it ends only this camera, with an error."""
        try:
            job()
        except Exception as error:
            self.status.end(self.clock(), f"{self.camera.name}: reading failed: {error!r}")
            self.stopping.set()
            self.interrupt()
            self.wake()

    def put(self, picture: Picture) -> bool:
        added = self.slot.put(picture)
        if added:
            self.wake()
        return added
