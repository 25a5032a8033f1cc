"""Base of sinks that write rows about lines and zones (--zones)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from detector.core.sinks._rows import RowsSink
from detector.core.types import Detections, Frame, Scene, ZoneBook


class SceneSink(RowsSink):
    ending = ""
    # Writes all frames despite --only-detections: an object may leave in one without detections.
    options = ("only_detections",)
    needs = "--zones"

    def __init__(self, path: Path, *, only_detections: bool = False) -> None:
        super().__init__(path)
        self._book: ZoneBook | None = None

    @staticmethod
    @abstractmethod
    def select(scene: Scene) -> Iterable[Any]:
        """Return the items of a scene that this sink writes."""

    @staticmethod
    @abstractmethod
    def select_last(book: ZoneBook) -> Iterable[Any]:
        """Return the items that it writes at the end."""

    @abstractmethod
    def lines(self, items: Iterable[Any]) -> str:
        """Return the items as rows with their line ends."""

    def rows(self, frame: Frame, detections: Detections) -> str:
        if detections.scene is None:
            return ""
        self._book = detections.scene.book
        return self.lines(self.select(detections.scene))

    def close(self) -> Path:
        if self._partial is not None and self._book is not None:
            self._append(self.lines(self.select_last(self._book)))
        return super().close()
