"""Base of sinks that write rows about lines and zones (--zones)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from detector.core.sinks._rows import RowsSink
from detector.core.types import Detections, Frame, ZoneBook, ZoneCount, ZoneEvent


class SceneSink(RowsSink):
    ending = ""
    # Writes all frames despite --only-detections: an object may leave in one without detections.
    options = ("only_detections",)
    needs = "--zones"

    def __init__(self, path: Path, *, only_detections: bool = False) -> None:
        super().__init__(path)
        self._book: ZoneBook | None = None

    @abstractmethod
    def format_rows(self, events: Sequence[ZoneEvent], counts: Sequence[ZoneCount]) -> str:
        """Return the rows that this sink writes, with line ends."""

    def rows(self, frame: Frame, detections: Detections) -> str:
        scene = detections.scene
        if scene is None:
            return ""
        self._book = scene.book
        return self.format_rows(scene.events, scene.counts)

    def close(self) -> Path:
        if self._partial is not None and self._book is not None:
            self._append(self.format_rows(*self._book.finish()))
        return super().close()
