"""What viewers of a run see: pictures, figures, events.

A viewer costs the writer's thread one copy of a picture, only while pictures are requested
(``wants_pictures``). The thread that calls ``jpeg`` scales and encodes, once for each picture and
width. Only the newest picture is kept, so slow viewers skip pictures.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import cv2

from detector.core.types import Detections, Frame, Image
from detector.live.base import Event, LiveFigures

WIDTHS = (320, 640, 960, 1280, 1920)  # pixels; a requested width is rounded up to one of them
QUALITY = 80  # of JPEG: 25 to 60 kB at a width of 640
RATE = 25.0  # maximum and default, pictures per second
EVENTS_KEPT = 200
EVENTS_WAITING = 100  # per subscriber; beyond it the oldest is lost and counted
FORGOTTEN_AFTER_NS = 10_000_000_000  # an unrequested picture is freed after this time


@dataclass(frozen=True, slots=True)
class Controls:
    """What a viewer may change. ``cameras``: names for ``start`` and ``stop``. ``draw`` takes a
    camera and its lines and zones, and returns what changed and the file that stores them."""

    cameras: Callable[[], Collection[str]]
    start: Callable[[str], None]
    stop: Callable[[str], None]
    draw: Callable[[str, str], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Shot:
    number: int  # 1, 2, ... for the kept pictures of this camera
    image: Image  # u8 BGR [h, w, 3]; read-only
    taken_ns: int  # perf_counter_ns of the copy
    utc_s: float  # when the picture arrived; for files, when it was detected
    objects: int


@dataclass(slots=True)
class _CameraChannel:
    shot: Shot | None = None
    number: int = 0
    gap_ns: int | None = None  # between pictures, for the fastest viewer; None without viewers
    due_ns: int = 0
    asked: bool = False  # a single picture was requested
    last_wish_ns: int = 0
    answer: bool = False  # what ``wants_pictures`` last returned: the next picture is drawn
    encoding: threading.Lock = field(default_factory=threading.Lock)
    jpegs: dict[int, bytes] = field(default_factory=dict)  # width -> ``jpegs_of`` encoded
    jpegs_of: int = 0

    def wanted(self, now_ns: int) -> bool:
        if self.asked:
            return True
        # Half a period early is accepted, so that a camera with the viewer's rate loses no picture.
        return self.gap_ns is not None and now_ns >= self.due_ns - self.gap_ns // 2

    def give_back(self, now_ns: int) -> None:
        if self.gap_ns is None and now_ns - self.last_wish_ns > FORGOTTEN_AFTER_NS:
            self.shot, self.jpegs = None, {}


class HubWatch:
    """A viewer of one or more cameras. ``close`` it when the viewer leaves."""

    def __init__(self, hub: Hub, cameras: Collection[str], rate: float) -> None:
        self.cameras = frozenset(cameras)
        self.gap_ns = round(1e9 / min(max(rate, 0.1), RATE))
        self._hub = hub

    def close(self) -> None:
        self._hub.leave(self)


class Subscription:
    """Queued events of one subscriber, at most ``EVENTS_WAITING``."""

    def __init__(self, first: Iterable[tuple[int, Event]]) -> None:
        self._waiting: deque[tuple[int, Event]] = deque(first, maxlen=EVENTS_WAITING)
        self._lost = 0
        self._lock = threading.Lock()

    def put(self, number: int, event: Event) -> bool:
        """Add an event; return False if an older one was dropped for it."""
        with self._lock:
            full = len(self._waiting) == EVENTS_WAITING
            self._lost += full
            self._waiting.append((number, event))
            return not full

    def take(self) -> tuple[list[tuple[int, Event]], int]:
        """Return the queued events and the number of lost ones, and reset both."""
        with self._lock:
            waiting, lost = list(self._waiting), self._lost
            self._waiting.clear()
            self._lost = 0
        return waiting, lost


class Hub:
    """Shares a run with its viewers. Thread-safe. Keeps only pictures that ``wants_pictures``
    allowed: others may lack boxes and --blur."""

    name = "page"

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._channels: dict[str, _CameraChannel] = {}
        self._watches: set[HubWatch] = set()
        self._figures: Callable[[], LiveFigures] | None = None
        self._events: deque[tuple[int, Event]] = deque(maxlen=EVENTS_KEPT)
        self._event_count = 0
        self._lost = 0
        self._subscriptions: set[Subscription] = set()
        self._wake: Callable[[], None] = lambda: None
        self._woken = False
        self.encoded = 0  # JPEGs made: at most one for each picture and width
        self.encoded_bytes = 0

    def figures_from(self, provider: Callable[[], LiveFigures]) -> None:
        """Set the source of figures; a thread of the page calls it about once a second."""
        self._figures = provider

    def wants_pictures(self, camera: str) -> bool:
        channel = self._channel(camera)
        now = self._clock_ns()
        channel.answer = channel.wanted(now)
        channel.give_back(now)
        return channel.answer

    def show(self, frame: Frame, detections: Detections) -> None:
        if frame.arrival is not None:
            self.keep(frame.arrival.camera, frame, frame.arrival.utc_s, len(detections))

    def keep(self, camera: str, frame: Frame, utc_s: float, objects: int) -> None:
        """Keep a frame as ``show`` does, if it has no arrival. ``utc_s``: Unix time."""
        channel = self._channel(camera)
        if not channel.answer:
            return
        channel.answer = channel.asked = False  # first: later requests get a later picture
        now = self._clock_ns()
        if not channel.number:  # the first picture of this camera or file: another may have ended
            for other in list(self._channels.values()):
                other.give_back(now)
        if channel.gap_ns is not None:
            earliest = max(channel.due_ns, now - channel.gap_ns // 2)
            channel.due_ns = earliest + channel.gap_ns
        channel.number += 1
        channel.shot = Shot(channel.number, frame.image.copy(), now, utc_s, objects)
        self._call()

    def tell(self, event: Event) -> None:
        with self._lock:
            self._event_count += 1
            self._events.append((self._event_count, event))
            for subscription in self._subscriptions:
                self._lost += not subscription.put(self._event_count, event)
        self._call()

    def lost(self) -> int:
        return self._lost

    def close(self) -> None:
        """Do nothing: part of EventTarget."""

    def figures(self) -> LiveFigures | None:
        return None if self._figures is None else self._figures()

    def called_by(self, wake: Callable[[], None]) -> None:
        """Set ``wake``, called from any thread on a new picture or event, once until ``look``."""
        self._wake = wake

    def look(self) -> None:
        self._woken = False

    def watch(self, cameras: Collection[str], rate: float = RATE) -> HubWatch:
        """Draw and keep pictures of these cameras from now on, at most ``rate`` per second."""
        watch = HubWatch(self, cameras, rate)
        with self._lock:
            self._watches.add(watch)
            self._set_gaps(watch.cameras)
        return watch

    def leave(self, watch: HubWatch) -> None:
        with self._lock:
            self._watches.discard(watch)
            self._set_gaps(watch.cameras)

    def watchers(self) -> int:
        with self._lock:  # under the lock: viewers that left must not count
            return len(self._watches)

    def ask(self, camera: str) -> int:
        """Request one picture. Return the newest number so far; a higher one is the answer."""
        channel = self._channel(camera)
        channel.last_wish_ns = self._clock_ns()
        number = channel.number  # before the request, so that the answer has a higher number
        channel.asked = True
        return number

    def newest(self, camera: str) -> Shot | None:
        channel = self._channels.get(camera)
        return None if channel is None else channel.shot

    def age_ns(self, shot: Shot) -> int:
        return self._clock_ns() - shot.taken_ns

    def jpeg(self, camera: str, width: int | None = None) -> tuple[Shot, bytes] | None:
        """Return the newest picture and its JPEG, if any; ``width`` is rounded up to ``WIDTHS``."""
        channel = self._channels.get(camera)
        if channel is None:
            return None
        with channel.encoding:
            shot = channel.shot
            if shot is None:
                return None
            if channel.jpegs_of != shot.number:
                channel.jpegs, channel.jpegs_of = {}, shot.number
            wide = fitting_width(width, shot.image.shape[1])
            jpegs = channel.jpegs
            if wide not in jpegs:
                jpegs[wide] = _encode(shot.image, wide)
                self.encoded += 1
                self.encoded_bytes += len(jpegs[wide])
            return shot, jpegs[wide]

    def subscribe(self, after: int = 0) -> Subscription:
        with self._lock:
            one = Subscription(one for one in self._events if one[0] > after)
            self._subscriptions.add(one)
        return one

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    def _channel(self, camera: str) -> _CameraChannel:
        channel = self._channels.get(camera)
        return channel or self._channels.setdefault(camera, _CameraChannel())

    def _set_gaps(self, cameras: Iterable[str]) -> None:
        for camera in cameras:
            gaps = [watch.gap_ns for watch in self._watches if camera in watch.cameras]
            channel = self._channel(camera)
            channel.gap_ns = min(gaps, default=None)
            channel.last_wish_ns = self._clock_ns()

    def _call(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()


def fitting_width(wish: int | None, width: int) -> int:
    """Return the width to encode a picture of ``width`` pixels at: never above its own."""
    if wish is None:
        return width
    return min(next((one for one in WIDTHS if one >= wish), width), width)


def _encode(image: Image, width: int) -> bytes:
    height = max(1, round(image.shape[0] * width / image.shape[1]))
    if width != image.shape[1]:
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    done, coded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    if not done:
        raise ValueError(f"a JPEG cannot hold {image.shape[1]}x{image.shape[0]} pixels")
    return coded.tobytes()
