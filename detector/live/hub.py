"""Passes pictures, figures and events of a run to its viewers.

While pictures are requested (``wants_pictures``), the writer's thread copies them. ``jpeg`` scales
and encodes in its caller's thread, once for each picture and width. Only the newest picture is
kept, so slow viewers skip pictures.
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

WIDTHS = (320, 640, 960, 1280, 1920)  # pixels; a requested width is rounded up to one of these
QUALITY = 80  # JPEG quality, 0 to 100; a picture 640 pixels wide takes 25 to 60 kB
RATE = 25.0  # pictures per second, maximum and default
EVENTS_KEPT = 200
EVENTS_WAITING = 100  # per subscriber; if more are queued, the oldest is lost and counted
FORGOTTEN_AFTER_NS = 10_000_000_000  # a picture is freed after this time without a request


@dataclass(frozen=True, slots=True)
class Controls:
    """Lets a viewer control the run. ``cameras`` returns the names that ``start`` and ``stop``
    accept. ``draw`` sets a camera's lines and zones, and returns two texts: what changed, and the
    file that stores the lines and zones."""

    cameras: Callable[[], Collection[str]]
    start: Callable[[str], None]
    stop: Callable[[str], None]
    draw: Callable[[str, str], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Shot:
    number: int  # counts the kept pictures of this camera, from 1
    image: Image  # u8 BGR [h, w, 3]; read-only
    taken_ns: int  # perf_counter_ns of the copy
    utc_s: float  # when the picture arrived; for files, when it was detected
    objects: int


@dataclass(slots=True)
class _CameraChannel:
    shot: Shot | None = None
    number: int = 0
    interval_ns: int | None = None  # between pictures, for the fastest viewer; None without viewers
    due_ns: int = 0
    requested: bool = False  # a single picture was requested
    last_request_ns: int = 0
    draw_next: bool = False  # last result of ``wants_pictures``: whether the next picture has boxes
    encoding: threading.Lock = field(default_factory=threading.Lock)
    jpegs: dict[int, bytes] = field(default_factory=dict)  # width -> JPEG
    jpegs_of: int = 0  # the number of the picture that ``jpegs`` show

    def free_unrequested(self, now_ns: int) -> None:
        if self.interval_ns is None and now_ns - self.last_request_ns > FORGOTTEN_AFTER_NS:
            self.shot, self.jpegs = None, {}


@dataclass(frozen=True, slots=True, eq=False)
class HubWatch:
    cameras: frozenset[str]
    interval_ns: int  # between pictures


class Subscription:
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
        """Return and clear the queued events and the number of lost events."""
        with self._lock:
            waiting, lost = list(self._waiting), self._lost
            self._waiting.clear()
            self._lost = 0
        return waiting, lost


class Hub:
    """Holds what a run's viewers see. Thread-safe. Keeps only pictures that ``wants_pictures``
    requested, because other pictures may lack boxes or the pixelation of --blur."""

    name, failing = "page", False

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
        self._figures = provider

    def wants_pictures(self, camera: str) -> bool:
        channel = self._channel(camera)
        now = self._clock_ns()
        channel.draw_next = channel.requested or (
            # Accept pictures up to half an interval early, so that jitter does not lose any.
            channel.interval_ns is not None and now >= channel.due_ns - channel.interval_ns // 2
        )
        channel.free_unrequested(now)
        return channel.draw_next

    def show(self, frame: Frame, detections: Detections) -> None:
        if frame.arrival is not None:
            self.keep(frame.arrival.camera, frame, frame.arrival.utc_s, len(detections))

    def keep(self, camera: str, frame: Frame, utc_s: float, objects: int) -> None:
        """Keep a frame. For cameras, ``show`` calls this. ``utc_s``: Unix time."""
        channel = self._channel(camera)
        if not channel.draw_next:
            return
        # Clear requests before the copy, so that later requests get the next picture.
        channel.draw_next = channel.requested = False
        now = self._clock_ns()
        if not channel.number:  # when a run's next file begins, free pictures of earlier files
            for other in list(self._channels.values()):
                other.free_unrequested(now)
        if channel.interval_ns is not None:
            earliest = max(channel.due_ns, now - channel.interval_ns // 2)
            channel.due_ns = earliest + channel.interval_ns
        channel.number += 1
        channel.shot = Shot(channel.number, frame.image.copy(), now, utc_s, objects)
        self._notify()

    def send(self, event: Event) -> None:
        with self._lock:
            self._event_count += 1
            self._events.append((self._event_count, event))
            for subscription in self._subscriptions:
                self._lost += not subscription.put(self._event_count, event)
        self._notify()

    def lost(self) -> int:
        return self._lost

    def close(self) -> None:
        """Do nothing; ``EventTarget`` requires this method."""

    def figures(self) -> LiveFigures | None:
        return None if self._figures is None else self._figures()

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Set a function to call at the first picture or event after each ``clear_wake``."""
        self._wake = wake

    def clear_wake(self) -> None:
        self._woken = False

    def watch(self, cameras: Collection[str], rate: float = RATE) -> HubWatch:
        """Request pictures of these cameras until ``leave``, at most ``rate`` per second."""
        watch = HubWatch(frozenset(cameras), round(1e9 / min(max(rate, 0.1), RATE)))
        with self._lock:
            self._watches.add(watch)
            self._set_intervals(watch.cameras)
        return watch

    def leave(self, watch: HubWatch) -> None:
        with self._lock:
            self._watches.discard(watch)
            self._set_intervals(watch.cameras)

    def watchers(self) -> int:
        with self._lock:
            return len(self._watches)

    def request_picture(self, camera: str) -> int:
        """Request one picture. Its number will exceed the returned number."""
        channel = self._channel(camera)
        channel.last_request_ns = self._clock_ns()
        number = channel.number  # read before the request is set
        channel.requested = True
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
            fitting = fit_width(width, shot.image.shape[1])
            jpegs = channel.jpegs
            if fitting not in jpegs:
                jpegs[fitting] = _encode(shot.image, fitting)
                self.encoded += 1
                self.encoded_bytes += len(jpegs[fitting])
            return shot, jpegs[fitting]

    def subscribe(self, after: int = 0) -> Subscription:
        with self._lock:
            subscription = Subscription(item for item in self._events if item[0] > after)
            self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    def _channel(self, camera: str) -> _CameraChannel:
        channel = self._channels.get(camera)
        return channel or self._channels.setdefault(camera, _CameraChannel())

    def _set_intervals(self, cameras: Iterable[str]) -> None:
        for camera in cameras:
            intervals = [watch.interval_ns for watch in self._watches if camera in watch.cameras]
            channel = self._channel(camera)
            channel.interval_ns = min(intervals, default=None)
            channel.last_request_ns = self._clock_ns()

    def _notify(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()


def fit_width(requested: int | None, width: int) -> int:
    """Return the width to encode: ``requested`` rounded up to ``WIDTHS``, at most ``width``."""
    if requested is None:
        return width
    return min(next((one for one in WIDTHS if one >= requested), width), width)


def _encode(image: Image, width: int) -> bytes:
    height = max(1, round(image.shape[0] * width / image.shape[1]))
    if width != image.shape[1]:
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    done, coded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    if not done:
        raise ValueError(f"a JPEG cannot hold {image.shape[1]}x{image.shape[0]} pixels")
    return coded.tobytes()
