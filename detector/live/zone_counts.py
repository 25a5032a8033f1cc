"""Counts objects at lines and zones, today and on earlier days.

An object that enters a zone or appears in it is counted as "in". An object that leaves a zone, or
whose track ends in it, is counted as "out". Days and hours are local. Counts of earlier runs are
read from the files that ``zone_rows.py`` wrote.
"""

from __future__ import annotations

import csv
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from detector.core.errors.text import from_cell
from detector.live.base import Event, ZoneBook, ZoneFigures, ZoneShape, format_day, to_local
from detector.live.camera_folder import list_names_of_day, open_to_read

# Directions and events that are counted as "in". Others are "out", except "stays".
IN_EVENTS = ("in", "enters", "appears")
IN_COLUMNS, OUT_COLUMNS = ("in", "entered", "appeared"), ("out", "left", "ended")
HOURS = 24


class ZoneCounts:
    """The counts of a run. ``folder``: its outputs, if any. ``figures`` is thread-safe."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._folder, self.clock = folder, clock
        self._lock = threading.Lock()
        self._books: dict[str, ZoneBook] = {}
        # Objects over the whole run, and objects per hour of today.
        self._run: Counter[tuple[str, str, str, bool]] = Counter()  # camera, zone, class, is_in
        self._hours: Counter[tuple[str, str, int, str, bool]] = Counter()  # camera, day, hour...
        self._inside: Counter[tuple[str, str]] = Counter()  # objects in a zone now
        self._day = ""
        self._opened: set[str] = set()

    def open(self, camera: str) -> None:
        """Read today's counts of earlier runs. Call this before the run writes its own."""
        if self._folder is None or camera in self._opened:
            return
        self._opened.add(camera)
        day = format_day(self.clock())
        for (hour, zone, is_in), count in read_hours(self._folder, camera, day).items():
            self._hours[camera, day, hour, zone, is_in] += count

    def set_book(self, camera: str, book: ZoneBook) -> None:
        if self._books.get(camera) is not book:
            self.end(camera)
            with self._lock:
                self._books[camera] = book

    def end(self, camera: str) -> None:
        """Count as "out" the objects that are still in the camera's zones."""
        book = self._books.get(camera)
        for event in () if book is None else book.finish().events:
            self._add(camera, event.zone, event.class_name, False, self.clock())

    def count_frame(self, camera: str, scene: Any) -> None:
        """Count the events of a file's frame as if they happened now."""
        if scene.book is not None:
            self.set_book(camera, scene.book)
        for event in scene.events:
            if event.event != "stays":
                is_in = (event.direction or event.event) in IN_EVENTS
                self._add(camera, event.zone, event.class_name, is_in, self.clock())

    def count(self, event: Event) -> Event:
        """Count an event. Return it with ``count``: for a line, today's crossings in the event's
        direction; for a zone, the objects in it now."""
        zone, kind = event.zone, event.direction or event.event
        if zone is None:
            return event
        is_in = kind in IN_EVENTS
        if kind != "stays":
            self._add(event.camera, zone, event.class_name or "", is_in, event.time_s)
        with self._lock:
            if event.direction is None:
                return replace(event, count=self._inside[event.camera, zone])
            hours = self._count_by_hour(event.camera, zone, is_in, event.time_s)
        return replace(event, count=sum(hours))

    def _add(self, camera: str, zone: str, class_name: str, is_in: bool, time_s: float) -> None:
        day = format_day(time_s)
        with self._lock:
            if day > self._day:
                self._hours = Counter({k: n for k, n in self._hours.items() if k[1] >= day})
                self._day = day
            self._run[camera, zone, class_name, is_in] += 1
            self._hours[camera, day, to_local(time_s).hour, zone, is_in] += 1
            self._inside[camera, zone] += 1 if is_in else -1

    def _count_by_hour(self, camera: str, zone: str, is_in: bool, time_s: float) -> list[int]:
        day = format_day(time_s)
        return [self._hours[camera, day, hour, zone, is_in] for hour in range(HOURS)]

    def figures(self, camera: str) -> tuple[ZoneFigures, ...]:
        with self._lock:
            book = self._books.get(camera)
            return tuple(
                self._figures(camera, one) for one in (() if book is None else book.shapes())
            )

    def _figures(self, camera: str, shape: ZoneShape) -> ZoneFigures:
        zone, run, now_s = shape.name, self._run, self.clock()
        names = sorted({key[2] for key in run if key[:2] == (camera, zone)})
        hours = (self._count_by_hour(camera, zone, is_in, now_s) for is_in in (True, False))
        return ZoneFigures(
            shape=shape,
            counts={
                one: (run[camera, zone, one, True], run[camera, zone, one, False]) for one in names
            },
            inside=None if shape.is_line else self._inside[camera, zone],
            hours=tuple(zip(*hours, strict=True)),
        )


def read_hours(folder: Path, camera: str, day: str) -> Counter[tuple[int, str, bool]]:
    """Read a day's files. Return (hour, line or zone, whether in) -> number of objects."""
    hours: Counter[tuple[int, str, bool]] = Counter()
    for path in _files(folder, camera, day):
        # Files may be missing, or have other columns.
        with (
            suppress(OSError, KeyError, ValueError, csv.Error),
            open(path, newline="", errors="replace", opener=open_to_read) as file,
        ):
            for row in csv.DictReader(file):
                began, zone = datetime.fromisoformat(row["from_utc"]), from_cell(row["zone"] or "")
                for is_in, columns in ((True, IN_COLUMNS), (False, OUT_COLUMNS)):
                    count = sum(int(row[one] or 0) for one in columns)
                    hours[began.astimezone().hour, zone, is_in] += count
    return hours


def _files(folder: Path, camera: str, day: str) -> list[Path]:
    return [folder / camera / name for name in list_names_of_day("zone-counts", day, ".csv")]


def days_before(now_s: float, count: int) -> list[str]:
    """Return the ``count`` days before today, oldest first."""
    today = to_local(now_s).date()
    return [(today - timedelta(back)).isoformat() for back in range(count, 0, -1)]


def read_days(
    folder: Path, cameras: Sequence[str], days: Sequence[str]
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return (camera, line or zone) -> (in, out) for each of these days."""
    sums_of_days: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for camera in cameras:
        for index, day in enumerate(days):
            stamp = _stamp(folder, camera, day)
            for zone, sums in _sums_of_day(folder, camera, day, stamp).items():
                sums_of_days.setdefault((camera, zone), [(0, 0)] * len(days))[index] = sums
    return sums_of_days


def _stamp(folder: Path, camera: str, day: str) -> tuple[tuple[Path, int, int], ...]:
    stamps = []
    for path in _files(folder, camera, day):
        with suppress(OSError):
            stat = os.lstat(path)
            stamps.append((path, stat.st_mtime_ns, stat.st_size))
    return tuple(stamps)


@lru_cache(4096)
def _sums_of_day(
    folder: Path, camera: str, day: str, stamp: tuple[tuple[Path, int, int], ...]
) -> dict[str, tuple[int, int]]:
    """Return the sums of a day. ``stamp`` invalidates the cache when the day's files change."""
    sums: Counter[tuple[str, bool]] = Counter()
    for (_, zone, is_in), count in (read_hours(folder, camera, day) if stamp else {}).items():
        sums[zone, is_in] += count
    return {zone: (sums[zone, True], sums[zone, False]) for zone, _ in sums}
