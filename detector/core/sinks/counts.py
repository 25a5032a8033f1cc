"""CSV of what lines and zones counted (--zones): a row for each interval, shape and class."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from detector.core.errors.text import as_cell
from detector.core.sinks._rows import csv_lines
from detector.core.sinks._scene import SceneSink
from detector.core.sinks.events import rounded
from detector.core.types import Scene, ZoneBook, ZoneCount

KINDS = ("in", "out", "entered", "left", "appeared", "ended")
COLUMNS = (
    *("from_s", "to_s", "source", "zone", "class", *KINDS, "mean", "most"),
    *("in_name", "out_name"),
)


def count_cells(
    source: str, row: ZoneCount, when: Callable[[float], object] = rounded
) -> tuple[object, ...]:
    """A row under ``COLUMNS``. ``when`` writes a moment of the source's clock."""
    return (
        *(when(row.from_s), when(row.to_s)),
        *(as_cell(source), as_cell(row.zone), as_cell(row.class_name)),
        *(row.counts.get(kind, "") for kind in KINDS),
        *("" if row.mean is None else round(row.mean, 3), "" if row.most is None else row.most),
        *(map(as_cell, row.sides) if row.sides != KINDS[:2] else ("", "")),
    )


class CountsSink(SceneSink):
    name = "counts"
    suffixes = (".counts.csv",)
    header = csv_lines([COLUMNS])

    @staticmethod
    def of(scene: Scene) -> Iterable[ZoneCount]:
        return scene.counts

    @staticmethod
    def last(book: ZoneBook) -> Iterable[ZoneCount]:
        return book.finish()[1]

    def lines(self, found: Iterable[ZoneCount]) -> str:
        return csv_lines(count_cells(self._info.path, one) for one in found)
