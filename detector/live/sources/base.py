"""What a camera is, and the contract of its feed. A ``Feed`` reads one ``Camera`` in its own
threads and hands out ``Picture``s, converted late, so that dropped ones cost nothing."""

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

CONNECTING = "connecting"  # opened for the first time, or again
LIVE = "live"  # pictures arrive
STALLED = "stalled"  # connected, and nothing arrives
WAITING = "waiting"  # until the next try
ENDED = "ended"  # stopped on request, or given up
STATES = (CONNECTING, LIVE, STALLED, WAITING, ENDED)

# Why a received picture was not detected.
NEWER = "newer"  # a newer one took its place before anybody had time for it
UNDECODED = "undecoded"  # most decoded ones were for nothing: its group ended early (shedding)
LAG = "lag"  # it was older than --max-age, so its whole group of pictures was left out
RATE = "rate"  # the camera's own ``rate`` leaves it out
CORRUPT = "corrupt"  # damaged on the way, by the decoder's or the protocol's word
NO_KEY = "no_key"  # it came before the first key frame of its connection
STOPPED = "stopped"  # the run or the connection ended before its turn
REASONS = (NEWER, UNDECODED, LAG, RATE, CORRUPT, NO_KEY, STOPPED)

NETWORK, WEBCAM, FILE = "network", "webcam", "file"  # kinds of cameras
NAME = r"[A-Za-z0-9_-]{1,40}"  # of a camera: it becomes a folder, a topic and a label


@dataclass(frozen=True, slots=True)
class Camera:
    name: str  # fullmatches NAME; unique without regard to case
    kind: str
    address: Address
    # The main stream, for ``--record copy``, where ``address`` is the smaller one for detection.
    record_address: Address | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # of FFmpeg's protocol or demuxer
    classes: tuple[str, ...] | None = None  # keep these only; None: those of the run
    size: tuple[int, int] | None = None  # asked of a webcam: width, height
    rate: Fraction | None = None  # detect at most so many pictures a second
    # Polygons of points (x, y), 0 to 1 of the picture: what lies in one is not detected.
    masks: tuple[tuple[tuple[float, float], ...], ...] = ()
    tiles: str | None = None  # as --tiles is typed; None: that of the run
    events: Mapping[str, Any] = field(default_factory=dict)  # receiver -> its ``EventFilter``


@dataclass(frozen=True, slots=True)
class Terms:
    """What all feeds of a run are told. ``every``: of the two policies, not ``latest``."""

    every: bool = False
    max_age_s: float = 5.0
    start_timeout_s: float = 20.0
    wait: bool = False  # for cameras that never sent a picture, for ever
    burden: Burden = field(default_factory=Burden, compare=False)  # of all of them together
    grey: str | GreyRange = AUTO

    @property
    def give_up_s(self) -> float | None:
        """As of ``collect.Collector``."""
        return None if self.wait else self.start_timeout_s


@dataclass(slots=True)
class Picture:
    number: int  # counted from 0 over all received pictures of the camera; never restarts
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
    connects: int = 0  # times that pictures began to arrive: epochs, and reconnects + 1
    stalls: int = 0
    frozen: bool = False  # the same picture again and again
    next_try_ns: int | None = None  # perf_counter_ns; while ``state`` is waiting
    error: str | None = None  # the last one: what it means and what to do, without secrets
    width: int | None = None
    height: int | None = None
    fps: float | None = None  # pictures that arrived a second, over the last seconds
    codec: str = ""
    note: str = ""  # what is odd of its stream, which is read all the same


class PacketListener(Protocol):
    def opened(self, streams: Any, arrived_ns: int, utc_s: float) -> None:
        """A connection begins. ``streams``: PyAV's input streams, as templates for an output."""

    def packet(self, packet: Any, arrived_ns: int, utc_s: float) -> None:
        """A packet of video or sound (PyAV's), with its arrival."""

    def closed(self) -> None:
        """The connection is gone."""


class Feed:
    """Reads one camera until it is stopped. Safe to use from any thread; never raises."""

    camera: Camera

    def start(self) -> None:
        raise NotImplementedError

    def take(self) -> Picture | None:
        raise NotImplementedError

    def convert(self, picture: Picture, into: Image | None) -> Image:
        """The picture as BGR [h, w, 3] u8, rotated: in ``into`` where its shape fits."""
        raise NotImplementedError

    def waiting(self) -> int:
        raise NotImplementedError

    def facts(self) -> FeedFacts:
        raise NotImplementedError

    def listen(self, listener: PacketListener) -> None:
        """Hands every packet of video and sound to ``listener`` too. Before ``start``."""
        raise NotImplementedError

    def decode_all_while(self, needed: Callable[[], bool]) -> None:
        """Decode every picture while ``needed()``, from any thread. Call before ``start``."""

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Ends the threads. False where one of them was still busy after ``timeout_s``."""
        raise NotImplementedError
