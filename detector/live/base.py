"""The data types of a live run: its events, its figures, and the receivers of events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from detector.core.session.document import AgeFigures

APPEARS = "appears"  # a class was detected in 3 of 5 frames
LEAVES = "leaves"  # a class was not detected for 2 s; with ``zone``: an object left the zone
# Only with --zones. "ends": an object's track was lost in the zone.
CROSSES, ENTERS, STAYS, ENDS = "crosses", "enters", "stays", "ends"
CAMERA_UP = "camera_up"
CAMERA_DOWN = "camera_down"
EVENTS = (APPEARS, LEAVES, CROSSES, ENTERS, STAYS, ENDS, CAMERA_UP, CAMERA_DOWN)
RUN_ENDED = "the run ended"  # the ``reason`` of events at a run's planned end
LAST_S = 253402214400.0  # Unix time of the last day of the year 9999


def to_utc(time_s: float) -> datetime:
    """Convert Unix seconds to UTC, clamped to the years 1970 to 9999."""
    return datetime.fromtimestamp(min(max(time_s, 0.0), LAST_S), UTC)


def format_utc(time_s: float) -> str:
    """Format Unix seconds as ISO 8601 in UTC, with milliseconds: 2026-11-22T09:30:00.250Z."""
    return to_utc(time_s).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_local(time_s: float) -> datetime:
    return to_utc(time_s).astimezone()


def format_day(time_s: float) -> str:
    """Format the local day: 2026-11-22."""
    return to_local(time_s).date().isoformat()


def count_drops(dropped: Mapping[str, int], received: int) -> tuple[int, float]:
    """Return number and share of dropped frames, without those above the camera's ``rate``."""
    above_rate = dropped.get("rate", 0)
    count = sum(dropped.values()) - above_rate
    return count, count / max(1, received - above_rate)


def run_concurrently(calls: Iterable[Callable[[], object]], timeout_s: float | None = None) -> None:
    """Run each call in a thread, and wait up to ``timeout_s`` for each."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of an events file. Times are Unix seconds here, and ISO 8601 in UTC in files."""

    event: str
    camera: str
    time_s: float
    since_s: float  # start of the presence or state that the event reports
    class_name: str | None = None  # None for events of the camera itself
    # Highest number of objects of the class at once. With ``track``: their number in view. With
    # ``zone``: their number in the zone. For "crosses": today's crossings in this direction.
    count: int | None = None
    snapshot: str | None = None  # path of a picture, relative to the output folder
    reason: str | None = None  # why a camera is down, without secrets; or RUN_ENDED
    track: int | None = None  # id of the object, with --track
    zone: str | None = None  # name of the line or zone
    direction: str | None = None  # "in" or "out", for "crosses"
    side: str | None = None  # the line's name for that direction, if it has one


class EventTarget(Protocol):
    """A receiver of events. ``send`` never blocks. ``lost`` counts events not delivered."""

    name: str

    @property
    def failing(self) -> bool: ...

    def send(self, event: Event) -> None: ...

    def lost(self) -> int: ...

    def close(self) -> None: ...


class ZoneShape(Protocol):
    """A line or zone. ``points``: x and y, 0 to 1. ``sides``: the user's names for in and out."""

    @property
    def name(self) -> str: ...
    @property
    def points(self) -> tuple[tuple[float, float], ...]: ...
    @property
    def is_line(self) -> bool: ...
    @property
    def sides(self) -> tuple[str, str]: ...


class ZoneBook(Protocol):
    """The counts of a camera or file, kept by ``detector/tracks``. ``finish`` ends the counts and
    returns the last ``Detections.scene``. Further calls return the same."""

    def shapes(self) -> Sequence[ZoneShape]: ...
    def finish(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class ZoneFigures:
    """The counts of a line (crossings) or zone (objects that entered or left)."""

    shape: ZoneShape
    counts: Mapping[str, tuple[int, int]]  # class -> in and out, over the whole run
    inside: int | None  # objects in the zone now; None for a line
    hours: tuple[tuple[int, int], ...]  # in and out for each hour of today

    @property
    def today(self) -> tuple[int, int]:
        """How many went in and out today, including earlier runs."""
        return sum(come for come, _ in self.hours), sum(gone for _, gone in self.hours)


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """The figures of a camera or file. Counts cover the whole run, rates the last seconds."""

    name: str
    url: str  # without secrets
    state: str
    since_s: float  # seconds in this state
    received: int
    processed: int
    dropped: Mapping[str, int]
    reconnects: int
    stalls: int
    age_ms: AgeFigures  # age from arrival to result
    parts_ms: Mapping[str, AgeFigures] = field(default_factory=dict)  # waiting, decoding...
    camera_fps: float | None = None
    processed_fps: float | None = None
    size: str | None = None  # 1280x720
    tiles: str | None = None  # the camera's tiles, such as 2x2 or none
    frozen: bool = False
    error: str | None = None
    next_try_s: float | None = None
    kind: str = "camera"  # or "file"
    expected: int | None = None  # pictures in the file; None for cameras
    zones: tuple[ZoneFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveFigures:
    streams: tuple[StreamFigures, ...]
    uptime_s: float
    inference_fps: float | None
    end_to_end_fps: float | None  # over the last seconds, without outages
    busy: Mapping[str, float] = field(default_factory=dict)  # stage -> share of time, 0 to 1
    cpu_share: float | None = None  # share of all cores that this program uses
    computer_share: float | None = None  # the same for all programs; None if unknown
    capacity: float | None = None  # estimated number of cameras like these that are possible
    bottleneck: str = ""  # a sentence for the user
    engine_age_s: float | None = None  # since the engine last finished a request; 0 if it is idle
    events: Mapping[tuple[str, str], int] = field(default_factory=dict)  # receiver, result -> count
    # Camera ("" for receivers of events) and output -> whether writing fails now, and losses.
    outputs: Mapping[tuple[str, str], tuple[bool, int]] = field(default_factory=dict)
