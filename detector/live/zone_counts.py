"""Counts of lines and zones, now and on earlier days.

A zone counts objects that come (enter or appear) and that go (leave or end). Days and hours
are UTC. Today's counts begin with those of earlier runs; they and earlier days are read from the
files that ``zone_rows.py`` writes.
"""

from __future__ import annotations

import csv
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from detector.core.errors.text import from_cell
from detector.core.types import Scene, ZoneBook
from detector.live.base import Event, ZoneFigures, ZoneShape, day_text, moment_of
from detector.live.camera_folder import open_to_read

COMES = ("in", "enters", "appears")  # directions and events; all others but "stays" count as out
IN_COLUMNS, OUT_COLUMNS = ("in", "entered", "appeared"), ("out", "left", "ended")
HOURS = 24


class ZoneCounts:
    """``folder``: of the run's outputs, if it writes any. Any thread may ask for ``figures``."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._folder, self.clock = folder, clock
        self._lock = threading.Lock()
        self._books: dict[str, ZoneBook] = {}
        # Objects of the whole run, and those of each hour from today on.
        self._run: Counter[tuple[str, str, str, bool]] = Counter()  # camera, zone, class, comes
        self._hours: Counter[tuple[str, str, int, str, bool]] = Counter()  # camera, day, hour...
        self._inside: Counter[tuple[str, str]] = Counter()  # objects in a zone now
        self._day = ""
        self._opened: set[str] = set()

    def open(self, camera: str) -> None:
        """Read what earlier runs of today counted, before this one writes."""
        if self._folder is None or camera in self._opened:
            return
        self._opened.add(camera)
        day = day_text(self.clock())
        for (hour, zone, comes), count in read_hours(self._folder, camera, day).items():
            self._hours[camera, day, hour, zone, comes] += count

    def watch(self, camera: str, book: ZoneBook) -> None:
        """Count by ``book`` from now on."""
        if self._books.get(camera) is not book:
            self.end(camera)
            with self._lock:
                self._books[camera] = book

    def end(self, camera: str) -> None:
        """Objects that the camera's book leaves in a zone count as out."""
        book = self._books.get(camera)
        for one in () if book is None else book.finish()[0]:
            self._add(camera, one.zone, one.class_name, False, self.clock())

    def follow(self, camera: str, scene: Scene) -> None:
        """Count a frame of a file, as of now."""
        if scene.book is not None:
            self.watch(camera, scene.book)
        for one in scene.events:
            if one.event != "stays":
                comes = (one.direction or one.event) in COMES
                self._add(camera, one.zone, one.class_name, comes, self.clock())

    def count(self, event: Event) -> Event:
        """Count an event; that of a line or zone is returned with its ``count``: how often objects
        crossed in its direction today, or how many are in the zone."""
        zone, kind = event.zone, event.direction or event.event
        if zone is None:
            return event
        comes = kind in COMES
        if kind != "stays":
            self._add(event.camera, zone, event.class_name or "", comes, event.time_s)
        with self._lock:
            if event.direction is None:
                return replace(event, count=self._inside[event.camera, zone])
            hours = self._hours_of(event.camera, zone, comes, event.time_s)
        return replace(event, count=sum(hours))

    def _add(self, camera: str, zone: str, class_name: str, comes: bool, time_s: float) -> None:
        day = day_text(time_s)
        with self._lock:
            if day > self._day:
                self._hours = Counter({k: n for k, n in self._hours.items() if k[1] >= day})
                self._day = day
            self._run[camera, zone, class_name, comes] += 1
            self._hours[camera, day, moment_of(time_s).hour, zone, comes] += 1
            self._inside[camera, zone] += 1 if comes else -1

    def _hours_of(self, camera: str, zone: str, comes: bool, time_s: float) -> list[int]:
        day = day_text(time_s)
        return [self._hours[camera, day, hour, zone, comes] for hour in range(HOURS)]

    def figures(self, camera: str) -> tuple[ZoneFigures, ...]:
        """Of each line and zone that the camera has now, in the order of the file."""
        with self._lock:
            book = self._books.get(camera)
            return tuple(
                self._figures(camera, one) for one in (() if book is None else book.shapes())
            )

    def _figures(self, camera: str, shape: ZoneShape) -> ZoneFigures:
        zone, run, now_s = shape.name, self._run, self.clock()
        names = sorted({key[2] for key in run if key[:2] == (camera, zone)})
        hours = (self._hours_of(camera, zone, comes, now_s) for comes in (True, False))
        return ZoneFigures(
            shape=shape,
            counts={
                one: (run[camera, zone, one, True], run[camera, zone, one, False]) for one in names
            },
            inside=None if shape.is_line else self._inside[camera, zone],
            hours=tuple(zip(*hours, strict=True)),
        )


# The files.


def read_hours(folder: Path, camera: str, day: str) -> Counter[tuple[int, str, bool]]:
    """Hour, line or zone, and whether in -> objects, of the file of a day; none where it is not
    there."""
    path = folder / camera / f"zone-counts-{day}.csv"
    hours: Counter[tuple[int, str, bool]] = Counter()
    try:
        with open(path, newline="", errors="replace", opener=open_to_read) as file:
            for row in csv.DictReader(file):
                hour, zone = int((row["from_utc"] or "")[11:13]), from_cell(row["zone"] or "")
                for comes, columns in ((True, IN_COLUMNS), (False, OUT_COLUMNS)):
                    hours[hour, zone, comes] += sum(int(row[one] or 0) for one in columns)
    except (OSError, KeyError, ValueError, csv.Error):  # none, or not ours: what was read counts
        pass
    return hours


def days_before(now_s: float, count: int) -> list[str]:
    """The last ``count`` days that are over, the last one yesterday."""
    today = moment_of(now_s).date()
    return [(today - timedelta(back)).isoformat() for back in range(count, 0, -1)]


def read_days(
    folder: Path, cameras: Sequence[str], days: Sequence[str]
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Camera and line or zone -> in and out of each of these days."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for camera in cameras:
        for place, day in enumerate(days):
            for zone, sums in _sums_of_day(
                folder, camera, day, _stamp(folder, camera, day)
            ).items():
                found.setdefault((camera, zone), [(0, 0)] * len(days))[place] = sums
    return found


def _stamp(folder: Path, camera: str, day: str) -> tuple[int, int]:
    try:
        stat = os.lstat(folder / camera / f"zone-counts-{day}.csv")
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


@lru_cache(4096)
def _sums_of_day(
    folder: Path, camera: str, day: str, stamp: tuple[int, int]
) -> dict[str, tuple[int, int]]:
    """``stamp``: a file that has changed since is read again."""
    sums: Counter[tuple[str, bool]] = Counter()
    for (_, zone, comes), count in (read_hours(folder, camera, day) if stamp[1] else {}).items():
        sums[zone, comes] += count
    return {zone: (sums[zone, True], sums[zone, False]) for zone, _ in sums}
