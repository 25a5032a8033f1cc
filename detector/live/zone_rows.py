"""Writes the events and counts of lines and zones (--zones) as CSV rows.

Each local day has ``CAMERA/zone-events-YYYY-MM-DD.csv`` and ``CAMERA/zone-counts-YYYY-MM-DD.csv``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from detector.core import sinks
from detector.core.errors.writing import utf8
from detector.core.run.selection import class_ids
from detector.core.sinks._rows import csv_lines
from detector.core.types import Detections, Frame
from detector.live.base import ZoneBook, format_day, format_utc
from detector.live.rows import DayRows
from detector.live.sources.base import Camera


class _DayCsv(DayRows):
    """Writes rows as for a video file, but with times in UTC: columns ``*_s`` become ``*_utc``."""

    suffix = ".csv"

    def __init__(
        self, sink: str, folder: Path, camera: Camera, notice: Callable[[str], None]
    ) -> None:
        super().__init__(folder, camera, notice)
        self.stem = f"zone-{sink}"
        self._sink = cast(Any, sinks.find(sink))  # a class in detector/tracks
        self.head = utf8(csv_lines([[re.sub("_s$", "_utc", name) for name in self._sink.columns]]))

    def add(self, row: Any, when: Callable[[float], str], utc_s: float) -> None:
        cells = self._sink.cells(self._camera.name, row, when)
        self._append(utf8(csv_lines([cells])), format_day(utc_s), self._clock())


class ZoneRows:
    """The files of one camera. A day's last counts are written when the next day begins."""

    def __init__(self, folder: Path, camera: Camera, notice: Callable[[str], None]) -> None:
        self._classes = camera.classes
        self._kept_classes: set[str] | None = None  # the camera's own classes, if it has any
        self._events = _DayCsv("events", folder, camera, notice)
        self._counts = _DayCsv("counts", folder, camera, notice)
        self._book: ZoneBook | None = None
        self._shift_s = 0.0  # offset from the pictures' clock to Unix time

    def write(self, frame: Frame, detections: Detections) -> None:
        scene = detections.scene
        if scene is None or frame.arrival is None:
            return
        if scene.book is not self._book:
            if self._book is not None:
                self._add(self._book.finish())
            self._book = scene.book
            ids = class_ids("classes", self._classes, detections.names)
            self._kept_classes = (
                None if ids is None else {"", *(detections.names[one] for one in ids)}
            )
        self._shift_s = frame.arrival.utc_s - frame.time_s
        self._add(scene)

    def _add(self, scene: Any) -> None:
        """Write rows. Events have times of the pictures' clock, and counts have Unix times."""
        shift_s = self._shift_s
        for event in scene.events:
            self._events.add(event, lambda at: format_utc(at + shift_s), event.time_s + shift_s)
        for row in scene.counts:
            if self._kept_classes is None or row.class_name in self._kept_classes:
                self._counts.add(row, format_utc, row.from_s)

    def counts(self) -> dict[str, int]:
        both = self._events.counts(), self._counts.counts()
        return {what: sum(one[what] for one in both) for what in both[0]}

    def close(self) -> None:
        if self._book is not None:
            self._add(self._book.finish())
            self._book = None
        self._events.close()
        self._counts.close()
