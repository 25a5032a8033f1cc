"""Test that the rows, counts and recordings of a day add up, on clocks that the test sets.

Once an hour a person crosses a line. The real collector, stages, outputs, events and retention are
called in turn in one thread, so that a day takes no time.
"""

import csv
import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import av
import numpy as np
import pytest

from detector.core.config.levels import resolve_config
from detector.core.stages import between
from detector.core.timeline.timeline import OffTimeline
from detector.core.types import Arrival, Detections, SourceInfo
from detector.live.base import format_day
from detector.live.events.days import EventDays
from detector.live.events.rules import EventRules
from detector.live.figures import LiveStatus
from detector.live.recording.encoder import to_yuv
from detector.live.recording.inbox import Drawn
from detector.live.recording.names import list_recordings
from detector.live.recording.recording import Quality, Recording
from detector.live.recording.retention import Retention
from detector.live.routing import Output, Router
from detector.live.rows import CameraRows
from detector.live.sources.base import Picture
from detector.live.sources.collect import Collector
from detector.live.zone_rows import ZoneRows
from tests.live.fake_feeds import FakeFeed
from tests.live.record_settings import RecordSettings
from tests.live.streams import HEIGHT, NS, WIDTH, camera, draw_picture

HOUR, DAY = 3600.0, 86_400.0
HOURS = 25  # length of each case
KEEP_S = 6 * HOUR
PICTURES = 6  # per crossing, 0.2 s apart
TICK = Fraction(1, 90_000)
NAMES = ("person", "vehicle")
ZONES = """every: 1h
lines: {door: {points: [[0.5, 0], [0.5, 1]]}}
zones: {right: {points: [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]}}
"""


@dataclass
class FakeClocks:
    """``ns``: the monotonic clock. ``elapsed_s`` also counts while the machine sleeps. ``own_s``:
    the camera's clock."""

    utc_s: float
    ns: int = 1000 * NS
    elapsed_s: float = 0.0
    own_s: float = 5.0
    epoch: int = 1
    rate: float = 1.0  # seconds of the wall clock per monotonic second
    sets: int = 0
    back_s: float = 0.0  # how far the wall clock was set back in total

    def pass_s(self, seconds: float) -> None:
        self.utc_s += seconds * self.rate
        self.ns += round(seconds * NS)
        self.elapsed_s += seconds
        self.own_s += seconds

    def set(self, hours: float) -> None:
        self.utc_s += hours * HOUR
        self.sets += 1
        self.back_s += max(0.0, -hours * HOUR)

    def sleep(self, hours: float) -> None:
        self.set(hours)
        self.elapsed_s += hours * HOUR

    def connect(self, own_s: float = 0.5) -> None:
        self.own_s, self.epoch = own_s, self.epoch + 1


Changes = dict[int, Callable[[FakeClocks], Any]]  # hour -> change at its beginning


def sets(hours: float) -> Callable[[FakeClocks], None]:
    return lambda clocks: clocks.set(hours)


def own(stamp_s: float) -> Callable[[FakeClocks], None]:
    return lambda clocks: setattr(clocks, "own_s", stamp_s)


def turn_to(zone: str) -> Callable[[FakeClocks], None]:
    def turn(clocks: FakeClocks) -> None:
        os.environ["TZ"] = zone
        time.tzset()

    return turn


MAY = "2026-05-01T12"
SLOWED: Changes = {0: lambda clocks: setattr(clocks, "rate", 1 - 1 / DAY)}
WRAPPED: Changes = {4: own(-(2**33) / 90_000), 8: own(-(2**32) / 90_000)}
CASES: dict[str, tuple[str, str, Changes]] = {
    "summer time begins": ("Europe/Berlin", "2026-03-28T12", {}),
    "summer time ends": ("Europe/Berlin", "2026-10-24T12", {}),
    "summer time ends in New York": ("America/New_York", "2026-10-31T18", {}),
    "summer time of half an hour ends": ("Australia/Lord_Howe", "2026-04-04T03", {}),
    "summer time pauses for Ramadan": ("Africa/Casablanca", "2026-02-14T15", {}),
    "a year ends in a zone without summer time": ("Asia/Kolkata", "2026-12-31T06", {}),
    "a leap year has a 29 February": ("UTC", "2028-02-28T12", {}),
    "a leap second is smeared over a day": ("UTC", "2026-06-30T00", SLOWED),
    "the machine gets another time zone": ("Europe/Berlin", MAY, {7: turn_to("Pacific/Auckland")}),
    "the clock is set back by a second": ("UTC", MAY, {7: sets(-1 / HOUR)}),
    "the clock is set ahead by an hour": ("UTC", MAY, {7: sets(1)}),
    "the clock is set ahead by a day": ("UTC", MAY, {7: sets(24)}),
    "the clock is set ahead by a year": ("UTC", MAY, {7: sets(8760)}),
    "the clock is a year ahead for five hours": ("UTC", MAY, {7: sets(8760), 12: sets(-8760)}),
    "the clock is set back by an hour": ("UTC", MAY, {7: sets(-1)}),
    "the clock is set back by a day": ("UTC", MAY, {7: sets(-24)}),
    "the clock starts in 1970 and is corrected": ("UTC", "1970-01-01T00", {2: sets(24 * 20_500)}),
    "the machine sleeps for a night": ("UTC", MAY, {7: lambda clocks: clocks.sleep(8)}),
    "the camera's clock is set": ("UTC", MAY, {5: own(9e8), 9: lambda clocks: clocks.connect(0.0)}),
    "the camera's clock wraps": ("UTC", MAY, WRAPPED),
    "the camera reconnects often": ("UTC", MAY, dict.fromkeys(range(1, 25, 2), FakeClocks.connect)),
}


class Feed(FakeFeed):
    def arrive(self, clocks: FakeClocks) -> None:
        arrival = Arrival(self.camera.name, clocks.epoch, clocks.ns, clocks.utc_s, clocks.ns)
        pts = round(clocks.own_s / TICK)
        self.pictures.append(Picture(self.received, pts, TICK, WIDTH, HEIGHT, arrival, None))
        self.received += 1

    def convert(self, picture: Any, into: Any) -> Any:
        return draw_picture(picture.number)


class Recorder:
    """A stand-in for the recorder and its thread. ``sweep`` is called four times an hour."""

    def __init__(self, folder: Path, clocks: FakeClocks, notices: list[str]) -> None:
        self.clocks, self.folder = clocks, folder / "yard/video"
        settings, quality = RecordSettings("annotated", segment=60.0), Quality("ultrafast", 40)
        self.recording = Recording(folder / "yard", "yard", settings, quality, notices.append)
        self.finished_s: dict[Path, float] = {}  # when files were finished
        self.existing = set[Path]()
        self.pictures = 0  # in all files
        self.retention = Retention(
            *(folder, KEEP_S / DAY, None), utc=lambda: clocks.utc_s, clock=lambda: clocks.elapsed_s
        )

    def write(self, frame: Any, detections: Any) -> None:
        at = frame.arrival
        yuv = to_yuv(frame.image)
        self.recording.handle(
            Drawn(yuv, frame.size, at.arrived_ns, at.utc_s, at.epoch, Fraction(1))
        )

    def sweep(self) -> None:
        """Sweep. Check that no file was removed too early, and none is kept for too long."""
        self.recording.check(self.clocks.ns)
        for path in {recording.path for recording in list_recordings(self.folder)} - self.existing:
            self.finished_s[path] = self.clocks.elapsed_s
            os.utime(path, (self.clocks.utc_s,) * 2)
            with av.open(str(path)) as container:
                self.pictures += sum(1 for packet in container.demux(video=0) if packet.size)
        self.retention.sweep()
        self.existing = {path for path in self.finished_s if path.exists()}
        for path, end_s in self.finished_s.items():
            hours = (self.clocks.elapsed_s - end_s) / HOUR
            removed = not path.exists()
            assert removed if hours > KEEP_S / HOUR + 1 else removed <= (hours >= KEEP_S / HOUR), (
                path
            )

    def close(self) -> None:
        self.recording.finish()
        self.sweep()


class Rig:
    def __init__(self, folder: Path, clocks: FakeClocks) -> None:
        self.clocks, self.folder, self.day = clocks, folder, ""
        self.notices: list[str] = []
        self.zones: set[str] = set()
        self.sessions = Counter[str]()
        (folder / "zones.yaml").write_text(ZONES)
        options = {"track": "bytetrack", "zones": str(folder / "zones.yaml")}
        self.choices = between.choose(resolve_config(None, options).as_dict())
        clock = lambda: clocks.ns  # noqa: E731
        self.recorder = Recorder(folder, clocks, self.notices)
        self.collector = Collector(
            [], lambda camera_config, wake: Feed(camera_config, wake, clock), clock=clock
        )
        self.status = LiveStatus(self.collector, 2, clock, lambda: 0)
        self.router = Router(
            *(self.make, self.status),
            rules=EventRules(clocks.ns, clocks.utc_s),
            send=EventDays(folder).deliver,
            clock=clock,
        )
        self.feed: Any = self.collector.add(camera())
        self.router.open(camera(), self.feed, None)

    def make(self, camera_config: Any, feed: Any) -> list[Output]:
        self.rows = CameraRows(
            self.folder, camera_config, self.notices.append, clock=lambda: self.clocks.ns
        )
        people = replace(camera_config, classes=("person",))  # so that vehicles have no rows
        zones = ZoneRows(self.folder, people, self.notices.append)
        sinks = {"jsonl": self.rows, "zones": zones, "recording": self.recorder}
        return [Output(name, sink, self.folder) for name, sink in sinks.items()]

    def turn(self) -> None:
        """On a new day, end the old day and begin a loop with new stages, as the monitor does."""
        if (day := format_day(self.clocks.utc_s)) != self.day:
            self.end_day()
            self.day = day
            self.status.begin_day(OffTimeline())
            info = SourceInfo("rtsp://a", "live", WIDTH, HEIGHT, Fraction(25), TICK)
            self.stages = [
                camera_config.kind(camera_config.settings, info, NAMES, 0.25)
                for camera_config in self.choices
            ]

    def end_day(self) -> None:
        if self.day:
            self.stages[1].close()
            (stream,) = self.status.summaries(NAMES, {})
            self.sessions.update(received=stream.received, processed=stream.processed)

    def pass_an_hour(self) -> None:
        for step in range(PICTURES):
            self.clocks.pass_s(0.2)
            self.feed.arrive(self.clocks)
            frame = self.collector.read()
            frame.arrival.inferred_ns = self.clocks.ns
            x = 40.0 + 34 * step
            box = np.array([[x - 30, 10, x + 30, 60]], np.float32)
            detections = Detections(box, np.array([0.9], np.float32), np.array([0]), NAMES)
            for stage in self.stages:
                detections = stage(frame, detections)
            self.router.needs_boxes(frame)
            self.router.write(frame, self.router.keep(frame, detections))
        self.turn()
        for _ in range(4):
            self.clocks.pass_s(900 - PICTURES * 0.05)
            self.recorder.sweep()
            self.router.tick({"yard": self.feed.facts()}, self.clocks.ns, self.clocks.utc_s)
        self.status.sample()


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_rows_counts_and_recordings_add_up_over_a_day(
    case: str, tmp_path: Path, local_time: object
) -> None:
    name, start, changes = CASES[case]
    clocks = FakeClocks(seconds(f"{start}+00:00"))
    turn_to(name)(clocks)
    rig = Rig(tmp_path, clocks)
    rig.turn()
    usage = []
    for hour in range(HOURS):
        changes.get(hour, lambda clocks: None)(clocks)
        rig.zones.add(os.environ["TZ"])
        rig.pass_an_hour()
        if hour in (2, HOURS - 1):
            gc.collect()
            usage.append((len(gc.get_objects()), len(os.listdir("/proc/self/fd"))))
    rig.router.close()
    rig.end_day()
    assert rig.notices == []
    (objects, files), (later, files_later) = usage
    assert files_later == files
    assert later - objects < (HOURS - 3) * PICTURES, "something grows with each picture"
    check_rows(rig)
    check_counts(rig)
    for event in rows_of(rig, "events"):
        if event["event"] == "leaves" and not event["reason"]:
            assert 0 <= seconds(event["time_utc"]) - seconds(event["since_utc"]) <= HOUR, event


def rows_of(rig: Rig, stem: str) -> list[dict[str, Any]]:
    paths = sorted((rig.folder / "yard").glob(f"{stem}-*.jsonl"))
    rows = [(path, json.loads(line)) for path in paths for line in path.read_text().splitlines()]
    days = [(path.stem[-10:], seconds(row["time_utc"])) for path, row in rows]
    assert all(day in days_of(time_s, rig.zones) for day, time_s in days)
    assert all(row["time_utc"].endswith("Z") for _, row in rows)
    return [row for _, row in rows]


def days_of(time_s: float, zones: set[str]) -> set[str]:
    """Return the local days at ``time_s`` in all time zones that the machine has had."""
    return {datetime.fromtimestamp(time_s, ZoneInfo(zone)).date().isoformat() for zone in zones}


def check_rows(rig: Rig) -> None:
    numbers = [row["frame"] for row in rows_of(rig, "detections")]
    assert sorted(numbers) == list(range(HOURS * PICTURES))
    counted = rig.sessions["processed"], rig.sessions["received"], rig.recorder.pictures
    assert counted == (HOURS * PICTURES,) * 3


def check_counts(rig: Rig) -> None:
    def read_days(stem: str) -> list[list[dict[str, str]]]:
        paths = sorted((rig.folder / "yard").glob(f"{stem}-*.csv"))
        read_days = [list(csv.DictReader(path.read_text().splitlines())) for path in paths]
        for path, rows in zip(paths, read_days, strict=True):
            for row in rows:
                began_s = seconds(row.get("from_utc", "") or row["time_utc"])
                assert path.stem[-10:] in days_of(began_s, rig.zones), row
        return read_days

    days, clocks = read_days("zone-counts"), rig.clocks
    intervals = [row for rows in days for row in rows if row["zone"] == "door"]
    events = [row for rows in read_days("zone-events") for row in rows]
    crossings = [row["time_utc"] for row in events if row["event"] == "crosses"]
    assert len(crossings) == sum(int(row["in"]) + int(row["out"]) for row in intervals) == HOURS
    for row in intervals:
        crossed = sum(row["from_utc"] <= at < row["to_utc"] for at in crossings)
        assert crossed == int(row["in"]) + int(row["out"]) or clocks.back_s, row
        assert seconds(row["to_local"]) == int(seconds(row["to_utc"])), row
    spans = sorted((seconds(row["from_utc"]), seconds(row["to_utc"])) for row in intervals)
    gaps = [b[0] - a[1] for a, b in pairwise(spans)]
    assert sum(-gap for gap in gaps if gap < 0) <= clocks.back_s
    assert sum(gap != 0 for gap in gaps) < len(days) + clocks.sets or clocks.back_s
    for row in events:
        if row["since_utc"]:
            assert 0 <= seconds(row["time_utc"]) - seconds(row["since_utc"]) <= HOUR, row
