"""The JSON documents of the page, and the health of a run.

``redact`` removes secrets from all texts that come from outside: addresses, errors, class names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from detector.core.errors.secrets import redact
from detector.core.session.document import AgeFigures
from detector.live.base import LiveFigures, StreamFigures, ZoneFigures, format_utc

ENGINE_HANGS_S = 30.0  # a run is unhealthy if its engine finishes no request for this long
LIVE = "live"


class AgesDocument(msgspec.Struct, frozen=True):
    """Age of frames when they were detected, in milliseconds; null before the first frame."""

    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


class SumsDocument(msgspec.Struct, frozen=True):
    """Crossings of a line in its two directions, or objects that entered and left a zone."""

    come: int = msgspec.field(name="in")
    gone: int = msgspec.field(name="out")


class ZoneDocument(msgspec.Struct, frozen=True):
    """A line or zone (--zones). ``points``: shares of the picture's width and height. ``sides``:
    the user's names for a line's directions, in and out. ``inside``: objects in a zone now.
    ``today`` and ``hours`` (local) include earlier runs; ``classes`` counts this run only."""

    name: str
    kind: Literal["line", "zone"]
    points: tuple[tuple[float, float], ...]
    sides: tuple[str, str]
    inside: int | None
    today: SumsDocument
    hours: list[SumsDocument]
    classes: dict[str, SumsDocument]


class ZoneDaysDocument(msgspec.Struct, frozen=True):
    """Sums of a line or zone for each day in ``CountsDocument.days``."""

    camera: str
    name: str
    sums: list[SumsDocument]


class CountsDocument(msgspec.Struct, frozen=True):
    """What lines and zones counted on the local days before today, oldest first."""

    schema: int
    days: list[str]
    zones: list[ZoneDaysDocument]


class StreamDocument(msgspec.Struct, frozen=True):
    """A camera or file. Counts are of the whole run, rates of the last few seconds."""

    name: str
    kind: Literal["camera", "file"]
    url: str
    state: str
    since_s: float
    received: int
    processed: int
    dropped: dict[str, int]
    reconnects: int
    stalls: int
    age_ms: AgesDocument
    parts_ms: dict[str, AgesDocument]
    camera_fps: float | None
    processed_fps: float | None
    size: str | None
    tiles: str | None
    frozen: bool
    error: str | None
    next_try_s: float | None
    expected: int | None
    zones: list[ZoneDocument]
    controllable: bool


class LiveDocument(msgspec.Struct, frozen=True):
    """The state of a run. ``cpu_share``: the share of all cores that this program uses;
    ``computer_share``: the share that all programs use; null if unknown. ``failing``: outputs that
    cannot be written or delivered now, such as "door recording" or "webhook". ``stopped``: cameras
    of cameras.yaml that a user stopped."""

    schema: int
    time_utc: str
    uptime_s: float
    healthy: bool
    failing: list[str]
    inference_fps: float | None
    end_to_end_fps: float | None
    busy: dict[str, float]
    cpu_share: float | None
    computer_share: float | None
    capacity: float | None
    bottleneck: str
    engine_age_s: float | None
    streams: list[StreamDocument]
    stopped: list[str]


class HistoryDocument(msgspec.Struct, frozen=True):
    """The last minutes, one value per sample. ``age_ms``: the median of a few seconds. Rates are
    frames per second. Values are null if unknown, or if the camera was not live."""

    schema: int
    every_s: float
    times_s: list[float]
    age_ms: dict[str, list[float | None]]
    processed_fps: dict[str, list[float | None]]
    dropped_fps: dict[str, list[float | None]]


class RecordingDocument(msgspec.Struct, frozen=True):
    """A file to download from ``url``. ``boxes_url``: its boxes as ASS subtitles, if any. Players
    load the subtitles if they are saved next to the video. ``finished``: false while the file is
    being written; ``url`` then returns the part that can be played."""

    camera: str
    name: str
    kind: str
    bytes: int
    start_utc: str
    url: str
    boxes_url: str | None
    finished: bool


class RecordingsDocument(msgspec.Struct, frozen=True):
    """Recordings, newest first. ``more``: true if there are older ones."""

    schema: int
    recordings: list[RecordingDocument]
    more: bool


class ChangeDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """An accepted change. ``asked``: start, stop, or a change of lines and zones ("door added").
    ``file`` stores lines and zones. The camera's state changes asynchronously."""

    schema: int
    camera: str
    asked: str
    file: str | None = None


class ErrorDocument(msgspec.Struct, frozen=True):
    """An error, with its reason."""

    schema: int
    error: str


def ages(age: AgeFigures) -> AgesDocument:
    return AgesDocument(rounded(age.p50), rounded(age.p90), rounded(age.p99), rounded(age.max))


def stream(figures: StreamFigures, controllable: bool = False) -> StreamDocument:
    return StreamDocument(
        name=figures.name,
        kind="file" if figures.kind == "file" else "camera",
        url=redact(figures.url),
        state=figures.state,
        since_s=round(float(figures.since_s), 2),
        received=figures.received,
        processed=figures.processed,
        dropped=dict(figures.dropped),
        reconnects=figures.reconnects,
        stalls=figures.stalls,
        age_ms=ages(figures.age_ms),
        parts_ms={part: ages(values) for part, values in figures.parts_ms.items()},
        camera_fps=rounded(figures.camera_fps),
        processed_fps=rounded(figures.processed_fps),
        size=figures.size,
        tiles=figures.tiles,
        frozen=figures.frozen,
        error=None if figures.error is None else redact(figures.error),
        next_try_s=rounded(figures.next_try_s),
        expected=figures.expected,
        zones=[_zone(zone) for zone in figures.zones],
        controllable=controllable,
    )


def _zone(figures: ZoneFigures) -> ZoneDocument:
    return ZoneDocument(
        name=figures.shape.name,
        kind="line" if figures.shape.is_line else "zone",
        points=figures.shape.points,
        sides=figures.shape.sides,
        inside=figures.inside,
        today=SumsDocument(*figures.today),
        hours=[SumsDocument(*sums) for sums in figures.hours],
        classes={redact(name): SumsDocument(*sums) for name, sums in figures.counts.items()},
    )


def live(figures: LiveFigures, now_s: float, controllable: Sequence[str] = ()) -> LiveDocument:
    """``now_s``: Unix time. ``controllable``: the cameras that viewers can start and stop."""
    return LiveDocument(
        schema=1,
        time_utc=format_utc(now_s),
        uptime_s=round(float(figures.uptime_s), 2),
        healthy=is_healthy(figures),
        failing=[" ".join(key).strip() for key, (fails, _) in figures.outputs.items() if fails],
        inference_fps=rounded(figures.inference_fps),
        end_to_end_fps=rounded(figures.end_to_end_fps),
        busy={stage: round(float(share), 4) for stage, share in figures.busy.items()},
        cpu_share=rounded(figures.cpu_share, 4),
        computer_share=rounded(figures.computer_share, 4),
        capacity=rounded(figures.capacity, 1),
        bottleneck=redact(figures.bottleneck),
        engine_age_s=rounded(figures.engine_age_s),
        streams=[stream(one, one.name in controllable) for one in figures.streams],
        stopped=sorted(set(controllable) - {one.name for one in figures.streams}),
    )


def is_healthy(figures: LiveFigures | None) -> bool:
    """Return False if the run has not started, if no camera is live, if rows or recordings cannot
    be written, or if the engine hangs. A failing receiver of events does not count: the fault is
    outside the run, and only the next event shows whether the receiver works again."""
    if figures is None or not any(one.state == LIVE for one in figures.streams):
        return False
    if any(camera and fails for (camera, _), (fails, _) in figures.outputs.items()):
        return False
    return figures.engine_age_s is None or figures.engine_age_s < ENGINE_HANGS_S


def rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(float(value), digits)  # NumPy numbers need float()
