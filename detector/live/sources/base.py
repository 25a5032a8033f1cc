"""The nouns of cameras, and the contract of feeds.

A ``Feed`` reads one ``Camera`` in its own threads and returns ``Picture``s, which are converted
late, so that dropped ones cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from detector.core.sources.base import AUTO, GreyRange
from detector.core.types import Arrival, Image
from detector.live.sources.burden import Burden

if TYPE_CHECKING:
    from detector.core.errors.secrets import Address

CONNECTING = "connecting"  # opening the connection
LIVE = "live"  # pictures arrive
STALLED = "stalled"  # connected, but nothing arrives
WAITING = "waiting"  # for the next attempt
ENDED = "ended"  # stopped on request, or given up
STATES = (CONNECTING, LIVE, STALLED, WAITING, ENDED)

# Why a received picture was not detected.
NEWER = "newer"  # replaced by a newer one
UNDECODED = "undecoded"  # skipped before decoding, to save CPU time (shedding)
LAG = "lag"  # older than --max-age, so its whole group of pictures was dropped
RATE = "rate"  # above the camera's ``rate``
CORRUPT = "corrupt"  # damaged, as the decoder or protocol reports
NO_KEY = "no_key"  # before the first key frame of its connection
STOPPED = "stopped"  # the run or the connection ended before its turn
REASONS = (NEWER, UNDECODED, LAG, RATE, CORRUPT, NO_KEY, STOPPED)

NETWORK, WEBCAM, FILE = "network", "webcam", "file"  # kinds of cameras
NAME = r"[A-Za-z0-9_-]{1,40}"  # of a camera; used as folder, topic and label


@dataclass(frozen=True, slots=True)
class Camera:
    name: str  # matches NAME; unique, ignoring case
    kind: str
    address: Address
    # The main stream, for ``--record copy``, if ``address`` is a smaller one for detection.
    record_address: Address | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # for FFmpeg's protocol or demuxer
    classes: tuple[str, ...] | None = None  # classes to keep; None: those of the run
    size: tuple[int, int] | None = None  # width, height to request from a webcam
    rate: Fraction | None = None  # most pictures to detect per second
    # Polygons of points (x, y), 0 to 1 of the picture; detections inside are dropped.
    masks: tuple[tuple[tuple[float, float], ...], ...] = ()
    tiles: str | None = None  # like --tiles; None: that of the run
    events: Mapping[str, Any] = field(default_factory=dict)  # receiver -> its ``EventFilter``


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of all feeds of a run. ``every``: the policy; False: ``latest``."""

    every: bool = False
    max_age_s: float = 5.0
    start_timeout_s: float = 20.0
    wait: bool = False  # wait forever for cameras that never sent a picture
    burden: Burden = field(default_factory=Burden, compare=False)  # shared by all feeds
    grey: str | GreyRange = AUTO

    @property
    def give_up_s(self) -> float | None:
        return None if self.wait else self.start_timeout_s


@dataclass(slots=True)
class Picture:
    number: int  # 0, 1, ... over all received pictures of the camera
    pts: int
    time_base: Fraction
    width: int  # displayed pixels, after rotation
    height: int
    arrival: Arrival
    content: Any  # what the feed decoded; only ``Feed.convert`` looks inside


@dataclass(frozen=True, slots=True)
class FeedFacts:
    state: str
    since_ns: int  # perf_counter_ns of the change to ``state``
    received: int = 0  # pictures that arrived, decoded or not
    taken: int = 0  # handed out by ``take``
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason -> pictures
    connects: int = 0  # times that pictures began to arrive: reconnects + 1
    stalls: int = 0
    frozen: bool = False  # the camera keeps sending the same picture
    next_try_ns: int | None = None  # perf_counter_ns; while ``state`` is waiting
    error: str | None = None  # the last error and its fix, without secrets
    width: int | None = None
    height: int | None = None
    fps: float | None = None  # pictures per second that arrived, over the last seconds
    codec: str = ""
    note: str = ""  # an oddity of its stream


class PacketListener(Protocol):
    def opened(self, streams: Any, arrived_ns: int, utc_s: float) -> None:
        """Begin a connection. ``streams``: PyAV's input streams, as templates for output."""

    def packet(self, packet: Any, arrived_ns: int, utc_s: float) -> None:
        """Take a packet of video or sound (PyAV's), with its arrival."""

    def closed(self) -> None:
        """End the connection."""


class Feed:
    """Reads one camera until it is stopped. Thread-safe; never raises."""

    camera: Camera

    def start(self) -> None:
        raise NotImplementedError

    def take(self) -> Picture | None:
        raise NotImplementedError

    def convert(self, picture: Picture, into: Image | None) -> Image:
        """Return the picture as BGR [h, w, 3] u8, rotated; in ``into`` if its shape fits."""
        raise NotImplementedError

    def waiting(self) -> int:
        raise NotImplementedError

    def facts(self) -> FeedFacts:
        raise NotImplementedError

    def listen(self, listener: PacketListener) -> None:
        """Pass every packet of video and sound to ``listener``, too. Call before ``start``."""
        raise NotImplementedError

    def decode_all_while(self, needed: Callable[[], bool]) -> None:
        """Decode every picture while ``needed()``, from any thread. Call before ``start``."""

    def stop(self, timeout_s: float = 1.0) -> bool:
        """End the threads; return False if one was still busy after ``timeout_s``."""
        raise NotImplementedError
