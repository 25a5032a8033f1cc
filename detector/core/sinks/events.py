"""CSV of what objects did at lines and in zones (--zones): a row for each event, by time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from detector.core.errors.text import as_cell
from detector.core.sinks._rows import RowsSink, csv_lines
from detector.core.types import Detections, Frame, ZoneBook, ZoneEvent

COLUMNS = (
    *("time_s", "source", "zone", "event", "direction", "class", "track", "x", "y"),
    *("since_s", "until_s"),
)


def event_cells(source: str, event: ZoneEvent, shift_s: float = 0.0) -> tuple[object, ...]:
    """A row under ``COLUMNS``. ``shift_s`` is added to its times."""
    times = (
        "" if one is None else round(one + shift_s, 3)
        for one in (event.time_s, event.since_s, event.until_s)
    )
    time_s, since_s, until_s = times
    return (
        *(time_s, as_cell(source), as_cell(event.zone), event.event, event.direction),
        *(as_cell(event.class_name), event.track, round(event.x, 2), round(event.y, 2)),
        *(since_s, until_s),
    )


class EventsSink(RowsSink):
    name = "events"
    suffixes = (".events.csv",)
    ending = ""
    # With --only-detections too: an object may leave in a frame without any.
    options = ("only_detections",)
    needs = "--zones"
    header = csv_lines([COLUMNS])

    def __init__(self, path: Path, *, only_detections: bool = False) -> None:
        super().__init__(path)
        self._book: ZoneBook | None = None

    def rows(self, frame: Frame, detections: Detections) -> str:
        if detections.scene is None:
            return ""
        self._book = detections.scene.book
        return self._lines(detections.scene.events)

    def _lines(self, events: Iterable[ZoneEvent]) -> str:
        return csv_lines(event_cells(self._info.path, event) for event in events)

    def close(self) -> Path:
        if self._partial is not None and self._book is not None:
            self._append(self._lines(self._book.finish()[0]))
        return super().close()
