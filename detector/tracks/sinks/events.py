"""CSV of events at lines and in zones (--zones): a row for each event, in order of time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from detector.core.errors.text import as_cell
from detector.core.sinks._rows import RowsSink, csv_lines
from detector.core.types import Detections, Frame

if TYPE_CHECKING:
    from detector.tracks.book import Book, Scene
    from detector.tracks.counting import ZoneEvent


def rounded(time_s: float) -> float:
    return round(time_s, 3)


class SceneSink(RowsSink):
    """Writes the rows of the ``Scene`` field that has the sink's name (``events`` or ``counts``).
    ``columns`` and the method ``cells`` describe a row. The wing live uses them, too."""

    ending = ""
    # Accepted but ignored, because an object may leave in a frame without detections.
    options = ("only_detections",)
    needs = "--zones"
    columns: ClassVar[tuple[str, ...]]
    cells: ClassVar[Any]

    def __init__(self, path: Path, *, only_detections: bool = False) -> None:
        super().__init__(path)
        self._book: Book | None = None

    def rows(self, frame: Frame, detections: Detections) -> str:
        if detections.scene is None:
            return ""
        self._book = detections.scene.book
        return self._format(detections.scene)

    def _format(self, scene: Scene) -> str:
        return csv_lines(self.cells(self._info.path, row) for row in getattr(scene, self.name))

    def close(self) -> Path:
        if self._partial is not None and self._book is not None:
            self._append(self._format(self._book.finish()))
        return super().close()


class EventsSink(SceneSink):
    name = "events"
    suffixes = (".events.csv",)
    columns = (
        *("time_s", "source", "zone", "event", "direction", "class", "track", "x", "y"),
        *("since_s", "until_s", "side"),
    )
    header = csv_lines([columns])

    @staticmethod
    def cells(
        source: str, event: ZoneEvent, when: Callable[[float], object] = rounded
    ) -> tuple[object, ...]:
        """Return a row: one cell per column. ``when`` formats seconds of the source's clock."""
        times_s = (event.time_s, event.since_s, event.until_s)
        time, since, until = ("" if time_s is None else when(time_s) for time_s in times_s)
        return (
            *(time, as_cell(source), as_cell(event.zone), event.event, event.direction),
            *(as_cell(event.class_name), event.track, round(event.x, 2), round(event.y, 2)),
            *(since, until, as_cell(event.side)),
        )
