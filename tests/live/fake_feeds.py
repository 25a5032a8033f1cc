"""A feed without a camera: the test decides which pictures arrive, and when."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from detector.core.errors.addresses import Address
from detector.core.types import Arrival
from detector.live.sources.base import (
    ENDED,
    LIVE,
    NETWORK,
    NEWER,
    STOPPED,
    Camera,
    Feed,
    FeedFacts,
    Picture,
)
from detector.live.sources.collect import Collector
from detector.live.sources.cpu_load import CpuLoad, LoadShares

MS = 1_000_000


def camera(name: str = "door", **more) -> Camera:
    return Camera(name, NETWORK, Address(f"rtsp://cam/{name}"), **more)


class Clock:
    def __init__(self, now: int = 10_000 * MS) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class FullCores(CpuLoad):
    """The load of a machine whose cores are busy, mostly with decoding."""

    def measure(self) -> LoadShares:
        return LoadShares(busy=1.0, decoding=0.6)


class FakeFeed(Feed):
    """``arrives`` adds pictures filled with their number. ``latest``: keep only the newest."""

    def __init__(self, camera: Camera, wake: Callable[[], None], clock, latest: bool = False):
        self.camera, self.wake, self.clock, self.latest = camera, wake, clock, latest
        self.state, self.fps, self.error = LIVE, 25.0, None
        self.next_try_ns: int | None = None
        self.size = (8, 8)
        self.received = self.taken = 0
        self.dropped: Counter[str] = Counter()
        self.connects, self.epoch, self.started, self.stopped = 1, 1, 0, 0
        self.pictures: deque[Picture] = deque()
        self.ends_in_time = True
        self.lock = threading.Lock()  # adding or removing a picture and counting it are one step

    def start(self) -> None:
        self.started += 1

    def utc_s(self) -> float:
        return self.clock() / 1e9

    def arrives(self, count: int = 1) -> None:
        for _ in range(count):
            width, height = self.size
            arrival = Arrival(
                self.camera.name, self.epoch, self.clock(), self.utc_s(), self.clock()
            )
            picture = Picture(
                self.received, self.received * 40, Fraction(1, 1000), width, height, arrival, None
            )
            with self.lock:
                if self.latest and self.pictures:
                    self.dropped[NEWER] += len(self.pictures)
                    self.pictures.clear()
                self.pictures.append(picture)
                self.received += 1
        self.wake()

    def take(self) -> Picture | None:
        with self.lock:
            if not self.pictures:
                return None
            self.taken += 1
            return self.pictures.popleft()

    def convert(self, picture, into):
        shape = (picture.height, picture.width, 3)
        image = into if into is not None and into.shape == shape else np.empty(shape, np.uint8)
        image[:] = picture.number % 256
        return image

    def waiting(self) -> int:
        return len(self.pictures)

    def facts(self) -> FeedFacts:
        with self.lock:
            return FeedFacts(
                self.state,
                0,
                self.received,
                self.taken,
                dict(self.dropped),
                self.connects,
                next_try_ns=self.next_try_ns,
                error=self.error,
                width=self.size[0],
                height=self.size[1],
                fps=self.fps if self.state == LIVE else None,
            )

    def listen(self, listener) -> None:
        raise AssertionError("no packets here")

    def stop(self, timeout_s: float = 1.0) -> bool:
        self.stopped += 1
        with self.lock:
            self.dropped[STOPPED] += len(self.pictures)
            self.pictures.clear()
            self.state = ENDED
        self.wake()
        return self.ends_in_time


class Bench:
    """A collector of fake feeds on a fake clock, which advances while the collector waits.
    ``while_waiting``: time in ms from the start -> function to call then."""

    def __init__(self, *names: str, latest: bool = False, **options) -> None:
        self.clock = Clock()
        self.start_ns = self.clock.now
        self.feeds: dict[str, FakeFeed] = {}
        self.while_waiting: dict[float, Callable[[], None]] = {}
        bench = self

        class FakeCollector(Collector):
            def _sleep(self, ns: int) -> None:
                bench.pass_until(bench.clock.now + ns)

        def make(camera: Camera, wake: Callable[[], None]) -> FakeFeed:
            feed = self.feeds[camera.name] = FakeFeed(camera, wake, self.clock, latest)
            return feed

        self.collector = FakeCollector(
            [camera(name) for name in names], make, clock=self.clock, **options
        )
        self.collector.start()

    def pass_until(self, moment: int) -> None:
        for at_ms in sorted(self.while_waiting):
            at = self.start_ns + round(at_ms * MS)
            if at <= moment:
                happens = self.while_waiting.pop(at_ms)
                self.clock.now = max(self.clock.now, at)
                happens()
                return
        self.clock.now = moment

    def ms(self) -> float:
        return (self.clock.now - self.start_ns) / MS

    def batch(self, rows: int) -> list[tuple[str, int]]:
        from detector.core.timeline.spans import OffTrack

        batch: list[tuple[str, int]] = []
        while len(batch) < rows:
            arrived = self.collector.arrive(OffTrack(), 0, len(batch))
            if not arrived and not batch and self.while_waiting:
                continue
            if not arrived:
                break
            if (frame := self.collector.read()) is None:
                break
            assert frame.arrival is not None
            batch.append((frame.arrival.camera, frame.index))
        return batch
