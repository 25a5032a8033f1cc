"""CSV of what lines and zones counted (--zones): a row for each interval, line or zone, and class
that was counted there before or is listed there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from detector.core.errors.text import as_cell
from detector.core.sinks._rows import RowsSink, csv_lines
from detector.core.sinks.events import rounded
from detector.core.types import Detections, Frame, ZoneBook, ZoneCount

KINDS = ("in", "out", "entered", "left", "appeared", "ended")
COLUMNS = ("from_s", "to_s", "source", "zone", "class", *KINDS, "mean", "most")


def count_cells(
    source: str, row: ZoneCount, when: Callable[[float], object] = rounded
) -> tuple[object, ...]:
    """A row under ``COLUMNS``. ``when`` writes a moment of the source's clock."""
    return (
        *(when(row.from_s), when(row.to_s)),
        *(as_cell(source), as_cell(row.zone), as_cell(row.class_name)),
        *(row.counts.get(kind, "") for kind in KINDS),
        *("" if row.mean is None else round(row.mean, 3), "" if row.most is None else row.most),
    )


class CountsSink(RowsSink):
    name = "counts"
    suffixes = (".counts.csv",)
    ending = ""
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
        return self._lines(detections.scene.counts)

    def _lines(self, counts: Iterable[ZoneCount]) -> str:
        return csv_lines(count_cells(self._info.path, row) for row in counts)

    def close(self) -> Path:
        if self._partial is not None and self._book is not None:
            self._append(self._lines(self._book.finish()[1]))
        return super().close()
