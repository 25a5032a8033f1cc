"""CSV of what objects did at lines and in zones (--zones): a row for each event, by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from detector.core.errors.text import as_cell
from detector.core.sinks._rows import RowsSink, csv_lines
from detector.core.types import Detections, Frame, ZoneBook, ZoneEvent

COLUMNS = (
    *("time_s", "source", "zone", "event", "direction", "class", "track", "x", "y"),
    *("since_s", "until_s"),
)


def rounded(time_s: float) -> float:
    """Seconds as they are written."""
    return round(time_s, 3)


def event_cells(
    source: str, event: ZoneEvent, when: Callable[[float], object] = rounded
) -> tuple[object, ...]:
    """A row under ``COLUMNS``. ``when`` writes a moment of the source's clock."""
    time, since, until = (
        "" if one is None else when(one) for one in (event.time_s, event.since_s, event.until_s)
    )
    return (
        *(time, as_cell(source), as_cell(event.zone), event.event, event.direction),
        *(as_cell(event.class_name), event.track, round(event.x, 2), round(event.y, 2)),
        *(since, until),
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
