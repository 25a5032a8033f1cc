"""Writes rows of lines and zones (--zones).

``CAMERA/zone-events-YYYY-MM-DD.csv`` and ``CAMERA/zone-counts-YYYY-MM-DD.csv``, by local days.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from detector.core.errors.writing import utf8
from detector.core.run.selection import class_ids
from detector.core.sinks import counts, events
from detector.core.sinks._rows import csv_lines
from detector.core.types import Detections, Frame, ZoneBook, ZoneCount, ZoneEvent
from detector.live.base import format_day, format_utc
from detector.live.rows import DayRows
from detector.live.sources.base import Camera


def _header(columns: Sequence[str]) -> bytes:
    """Return the header line. Times are in UTC, so ``time_s`` becomes ``time_utc``."""
    return utf8(csv_lines([[re.sub("_s$", "_utc", name) for name in columns]]))


class _DayCsv(DayRows):
    suffix = ".csv"

    def add(self, cells: tuple[object, ...], utc_s: float) -> None:
        self._append(utf8(csv_lines([cells])), format_day(utc_s), self._clock())


class _EventRows(_DayCsv):
    stem, head = "zone-events", _header(events.COLUMNS)


class _CountRows(_DayCsv):
    stem, head = "zone-counts", _header(counts.COLUMNS)


class ZoneRows:
    """The files of one camera. A day's last counts follow at the next day's first picture."""

    def __init__(self, folder: Path, camera: Camera, notice: Callable[[str], None]) -> None:
        self._camera, self._classes = camera.name, camera.classes
        self._kept_classes: set[str] | None = None  # the camera's own classes, if it has any
        self._events = _EventRows(folder, camera, notice)
        self._counts = _CountRows(folder, camera, notice)
        self._book: ZoneBook | None = None
        self._shift_s = 0.0  # offset from the pictures' clock to Unix time

    def write(self, frame: Frame, detections: Detections) -> None:
        scene = detections.scene
        if scene is None or frame.arrival is None:
            return
        if scene.book is not self._book:
            if self._book is not None:
                self._add(*self._book.finish())
            self._book = scene.book
            ids = class_ids("classes", self._classes, detections.names)
            self._kept_classes = (
                None if ids is None else {"", *(detections.names[one] for one in ids)}
            )
        self._shift_s = frame.arrival.utc_s - frame.time_s
        self._add(scene.events, scene.counts)

    def _add(self, zone_events: Sequence[ZoneEvent], rows: Sequence[ZoneCount]) -> None:
        """Write rows. Events have times of the pictures' clock, and counts have Unix times."""
        for event in zone_events:
            cells = events.event_cells(
                self._camera, event, lambda time_s: format_utc(time_s + self._shift_s)
            )
            self._events.add(cells, event.time_s + self._shift_s)
        for row in rows:
            if self._kept_classes is None or row.class_name in self._kept_classes:
                self._counts.add(counts.count_cells(self._camera, row, format_utc), row.from_s)

    def counts(self) -> dict[str, int]:
        both = self._events.counts(), self._counts.counts()
        return {what: sum(one[what] for one in both) for what in both[0]}

    def close(self) -> None:
        if self._book is not None:
            self._add(*self._book.finish())
            self._book = None
        self._events.close()
        self._counts.close()
