"""Base of sinks that write rows about lines and zones (--zones)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from detector.core.sinks._rows import RowsSink, csv_lines
from detector.core.types import Detections, Frame

if TYPE_CHECKING:
    from detector.tracks.book import Book, Scene


def rounded(time_s: float) -> float:
    return round(time_s, 3)


class SceneSink(RowsSink):
    """Writes the rows of a ``Scene`` that have the sink's name. ``columns`` and the method
    ``cells`` describe a row; the wing live calls them, too."""

    ending = ""
    # Writes all frames despite --only-detections: an object may leave in one without detections.
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
