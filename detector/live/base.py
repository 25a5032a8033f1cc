"""The nouns of a live run: its events, its figures, and who receives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

APPEARS = "appears"  # a class was seen in 3 of 5 frames
LEAVES = "leaves"  # it was not seen for 2 s; of an object with a ``zone``: that zone
# Of lines and zones alone (--zones). There "appears" is in the zone; "ends": nobody saw it leave.
CROSSES, ENTERS, STAYS, ENDS = "crosses", "enters", "stays", "ends"
CAMERA_UP = "camera_up"
CAMERA_DOWN = "camera_down"
EVENTS = (APPEARS, LEAVES, CROSSES, ENTERS, STAYS, ENDS, CAMERA_UP, CAMERA_DOWN)
RUN_ENDED = "the run ended"  # the ``reason`` of events of a planned end
LAST_S = 253402214400.0  # the last day of the year 9999


def moment_of(time_s: float) -> datetime:
    """Unix seconds in UTC; of a clock that lies by thousands of years, the nearest with a date."""
    return datetime.fromtimestamp(min(max(time_s, 0.0), LAST_S), UTC)


def utc_text(time_s: float) -> str:
    """Unix seconds as ISO 8601 in UTC, with milliseconds: 2026-11-22T09:30:00.250Z."""
    return moment_of(time_s).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local_of(time_s: float) -> datetime:
    """Unix seconds in this machine's time zone, as ``moment_of``."""
    return moment_of(time_s).astimezone()


def day_text(time_s: float) -> str:
    """The day in this machine's time zone: 2026-11-22."""
    return local_of(time_s).date().isoformat()


@dataclass(frozen=True, slots=True)
class Event:
    """One line of an events file. Times are Unix seconds here, and UTC in ISO 8601 outside."""

    event: str
    camera: str
    time_s: float
    since_s: float  # when what ends or begins here began
    class_name: str | None = None  # None for events of the camera itself
    # Objects of the class: the most at once; with ``track``: there now; with ``zone``: in it now,
    # or of "crosses" how often it was crossed in this direction today.
    count: int | None = None
    snapshot: str | None = None  # path of a picture, relative to the output folder
    reason: str | None = None  # why a camera is down, without secrets; RUN_ENDED
    track: int | None = None  # of the object, with --track
    zone: str | None = None  # name of the line or zone
    direction: str | None = None  # of "crosses": "in" or "out"
    side: str | None = None  # what the line calls it, if it has a name


class EventTarget(Protocol):
    """Is told of events. ``tell`` returns at once; what it cannot deliver it counts."""

    name: str

    def tell(self, event: Event) -> None: ...

    def lost(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ages:
    """How old pictures were, milliseconds; None before the first."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class ZoneShape(Protocol):
    """A line or zone. ``points``: shares of the picture's width and height; ``sides``: what a line
    calls in and out."""

    @property
    def name(self) -> str: ...
    @property
    def points(self) -> tuple[tuple[float, float], ...]: ...
    @property
    def is_line(self) -> bool: ...
    @property
    def sides(self) -> tuple[str, str]: ...


@dataclass(frozen=True, slots=True)
class ZoneFigures:
    """What a line or zone counted: crossings in and out, or objects that came and went."""

    shape: ZoneShape
    counts: Mapping[str, tuple[int, int]]  # class -> in and out, of the whole run
    inside: int | None  # objects in a zone now; None of a line
    hours: tuple[tuple[int, int], ...]  # in and out of each hour of today

    @property
    def today(self) -> tuple[int, int]:
        """In and out, also of earlier runs."""
        return sum(come for come, _ in self.hours), sum(gone for _, gone in self.hours)


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One camera at one moment. Counts are of the whole run, rates of the last seconds."""

    name: str
    url: str  # without secrets
    state: str
    since_s: float  # seconds in this state
    received: int
    processed: int
    dropped: Mapping[str, int]
    reconnects: int
    stalls: int
    age_ms: Ages  # from arrival to result
    parts_ms: Mapping[str, Ages] = field(default_factory=dict)  # waiting, decoding, inference...
    camera_fps: float | None = None
    processed_fps: float | None = None
    size: str | None = None  # 1280x720
    tiles: str | None = None  # into which its pictures are cut now: 2x2, none; of cameras
    frozen: bool = False
    error: str | None = None
    next_try_s: float | None = None
    kind: str = "camera"  # or "file": an ordinary run, as a watcher sees it
    expected: int | None = None  # pictures that a file holds; None for cameras
    zones: tuple[ZoneFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveFigures:
    streams: tuple[StreamFigures, ...]
    uptime_s: float
    inference_fps: float | None
    end_to_end_fps: float | None  # of the last seconds; never over an outage
    busy: Mapping[str, float] = field(default_factory=dict)  # stage -> share of the time, 0 to 1
    cpu_share: float | None = None  # of all cores, by this program
    computer_share: float | None = None  # of all cores, by all programs; None where nobody tells
    capacity: float | None = None  # how many such cameras this machine could take
    bottleneck: str = ""  # a sentence
    # Since the engine last finished a request; 0 where it has nothing to do.
    engine_age_s: float | None = None
    events: Mapping[tuple[str, str], int] = field(default_factory=dict)  # receiver, result
