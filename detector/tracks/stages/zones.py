"""The stage ``zones``: counts what tracks do at the lines and in the zones of ``--zones``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from detector.core.stages.between import Stage

if TYPE_CHECKING:
    from detector.core.types import Detections, Frame, SourceInfo
    from detector.tracks.book import Book
    from detector.tracks.zones_file import Places, ZonesFile


@dataclass(frozen=True, slots=True)
class ZonesSettings:
    """``classes``: those of --classes."""

    file: ZonesFile
    classes: Sequence[str] | None


class ZonesStage(Stage):
    turned_on_by = ("tracking", "zones")
    what = "Counting at lines and zones"
    advice = "fewer lines and zones"
    order = 1
    brings = ("counts", "events")

    @classmethod
    def settings(cls, options: Mapping[str, Any]) -> ZonesSettings:
        from detector.tracks.zones_file import read_zones

        zones = read_zones(options["tracking"]["zones"])
        return ZonesSettings(zones, options["selection"]["classes"])

    @classmethod
    def check(cls, settings: ZonesSettings, names: Sequence[str]) -> None:
        from detector.tracks.book import class_ids_of

        for places in settings.file.each():
            class_ids_of(places, settings.file.path, settings.classes, names)

    def __init__(
        self, settings: ZonesSettings, info: SourceInfo, names: Sequence[str], conf: float
    ) -> None:
        self._classes, self._names = settings.classes, names
        self._file = settings.file
        self._ordered = info.kind == "pictures"
        self._books: list[Book] = []
        self._by_camera: dict[str, Book] = {}
        if info.kind == "live":
            self._check_cameras()
        else:
            places = self._file.of_clip(info.path)
            places.check_size(self._file.path, info.width, info.height)
            self._open("", places)

    def _check_cameras(self) -> None:
        from detector.core.errors import UsageError

        asked = (self._file.default, *self._file.cameras.values())
        if any(places.shapes and places.size is None for places in asked):
            raise UsageError(
                f"{self._file.path}: for cameras, give points as fractions (0 to 1), or add size: "
                "[WIDTH, HEIGHT], because the size of a camera's frames may change"
            )

    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        from detector.tracks.motion import STEP_S

        camera = frame.arrival.camera if frame.arrival else ""
        book = self._by_camera.get(camera)
        if book is None or book.is_closed:
            book = self._open(camera, self._file.of_camera(camera))
        if not book.counter.places.shapes:
            return detections
        time_s = frame.index * STEP_S if self._ordered else frame.time_s
        return replace(detections, scene=book.update(frame, detections, time_s))

    def _open(self, camera: str, places: Places) -> Book:
        from detector.tracks.book import Book, class_ids_of
        from detector.tracks.counting import Counter

        classes = class_ids_of(places, self._file.path, self._classes, self._names)
        book = Book(camera, Counter(places, self._names, classes))
        self._by_camera[camera] = book
        self._books.append(book)
        return book

    def close(self) -> Sequence[str]:
        for book in self._books:
            book.finish()
        return ()

    def findings(self) -> dict[str, Any]:
        """``zones`` of the summary and ``scenes`` of the session's document."""
        from detector.tracks.zone_figures import history_of, totals_of

        books = [book for book in self._books if book.counter.places.shapes]
        counted = [(book.camera, book.counter, self._names) for book in books]
        return {
            "zones": [zone for one in counted for zone in totals_of(*one)],
            "scenes": [history_of(*one) for one in counted],
        }
