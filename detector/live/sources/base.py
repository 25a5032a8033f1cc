"""The data types of cameras, and the interface of feeds.

A ``Feed`` reads one ``Camera`` in its own threads and returns ``Picture``s. A picture is converted
to BGR as late as possible, so that dropped pictures cost no conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from detector.core.sources.base import AUTO, GreyRange
from detector.core.types import Arrival, Image
from detector.live.sources.cpu_load import CpuLoad

if TYPE_CHECKING:
    from detector.core.errors.addresses import Address

CONNECTING = "connecting"  # opening the connection
LIVE = "live"  # pictures arrive
STALLED = "stalled"  # connected, but nothing arrives
WAITING = "waiting"  # pausing before the next attempt to connect
ENDED = "ended"  # stopped on request, or given up
STATES = (CONNECTING, LIVE, STALLED, WAITING, ENDED)

# Why a received picture was not detected.
NEWER = "newer"  # replaced by a newer picture
UNDECODED = "undecoded"  # skipped before decoding, to save CPU time (shedding)
LAG = "lag"  # too old (Terms.max_age_s, or EAGER_LAG_S), so its group of pictures was dropped
RATE = "rate"  # above the camera's ``rate``
CORRUPT = "corrupt"  # the decoder or the protocol reported damage
NO_KEY = "no_key"  # before the first key frame of its connection
STOPPED = "stopped"  # the run or the connection ended before the picture's turn
REASONS = (NEWER, UNDECODED, LAG, RATE, CORRUPT, NO_KEY, STOPPED)

NETWORK, WEBCAM, FILE = "network", "webcam", "file"  # kinds of cameras
NAME = r"[A-Za-z0-9_-]{1,40}"  # a camera's name, which is also a folder, topic and label


@dataclass(frozen=True, slots=True)
class Camera:
    name: str  # matches NAME; unique, ignoring case
    kind: str  # NETWORK, WEBCAM or FILE
    address: Address
    # The main stream for --record copy, if ``address`` is a smaller stream for detection.
    record_address: Address | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # FFmpeg's protocol or demuxer options
    classes: tuple[str, ...] | None = None  # classes to keep; None: those of the run
    size: tuple[int, int] | None = None  # width, height to request from a webcam
    rate: Fraction | None = None  # limit on detected pictures per second
    # Polygons of points (x, y), as shares of width and height; detections inside are dropped.
    masks: tuple[tuple[tuple[float, float], ...], ...] = ()
    tiles: str | None = None  # like --tiles; None: those of the run
    events: Mapping[str, Any] = field(default_factory=dict)  # receiver -> its ``EventFilter``


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of all feeds of a run. ``every``: --live every; False: --live latest."""

    every: bool = False
    max_age_s: float = 5.0
    start_timeout_s: float = 20.0
    wait: bool = False  # wait without limit for cameras that never sent a picture
    cpu_load: CpuLoad = field(default_factory=CpuLoad, compare=False)  # shared by all feeds
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
    content: Any  # the decoded picture in the feed's own form, for ``Feed.convert``


@dataclass(frozen=True, slots=True)
class FeedFacts:
    state: str
    since_ns: int  # perf_counter_ns of the change to ``state``
    received: int = 0  # pictures that arrived, decoded or not
    taken: int = 0  # pictures that ``take`` returned
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason -> pictures
    connects: int = 0  # times that pictures began to arrive
    stalls: int = 0
    frozen: bool = False  # the camera keeps sending the same picture
    next_try_ns: int | None = None  # perf_counter_ns of the next attempt, if ``state`` is WAITING
    error: str | None = None  # the last error and its fix, without secrets
    width: int | None = None
    height: int | None = None
    fps: float | None = None  # pictures per second that arrived, over the last seconds
    codec: str = ""
    note: str = ""  # a remark on the stream, for the user
    reconnects: int = 0  # new connections after a loss, not after a planned stop


class PacketListener(Protocol):
    def opened(self, streams: Any, arrived_ns: int, utc_s: float) -> None:
        """Begin a connection. ``streams``: PyAV's input streams, as templates for output."""

    def packet(self, packet: Any, arrived_ns: int, utc_s: float) -> None:
        """Take PyAV's packet of video or sound, with its arrival time."""

    def closed(self) -> None: ...


class Feed(Protocol):
    """Reads one camera until ``stop``. Thread-safe; never raises."""

    camera: Camera

    def start(self) -> None: ...
    def take(self) -> Picture | None: ...

    def convert(self, picture: Picture, into: Image | None) -> Image:
        """Return the upright picture as BGR [h, w, 3] u8, in ``into`` if its shape fits."""

    def waiting(self) -> int: ...
    def facts(self) -> FeedFacts: ...
    def listen(self, listener: PacketListener) -> None:
        """Also pass every packet of video and sound to ``listener``. Call before ``start``."""

    def decode_all_while(self, needed: Callable[[], bool]) -> None:
        """Decode all pictures while ``needed()`` returns true. Call this method before ``start``.
        Any thread may call ``needed``."""
        return  # most feeds always decode all

    def stop(self, timeout_s: float = 1.0) -> bool:
        """End the threads; return False if one is still running after ``timeout_s``."""
