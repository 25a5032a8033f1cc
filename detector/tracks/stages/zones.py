"""The stage ``zones``, which counts what tracks do at the lines and in the zones of ``--zones``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from detector.core.errors.guard import keep
from detector.core.stages.between.base import Stage

if TYPE_CHECKING:
    from detector.core.types import Detections, Frame, SourceInfo
    from detector.tracks.zones_file import ZonesFile


@dataclass(frozen=True, slots=True)
class ZonesSettings:
    """``classes``: the names given with --classes. Runs with cameras call ``zones_of``."""

    file: ZonesFile
    classes: Sequence[str] | None

    def zones_of(self, camera: str) -> Sequence[str]:
        return [shape.name for shape in self.file.of_camera(camera).shapes]


class ZonesStage(Stage):
    turned_on_by = ("tracking", "zones")
    what = "Counting at lines and zones"
    advice = "fewer lines and zones"
    order = 1
    brings = ("counts", "events")

    @classmethod
    def settings(cls, options: Mapping[str, Any]) -> ZonesSettings:
        from detector.tracks.zones_file import read_zones

        keep("the lines and zones", options["tracking"]["zones"])
        zones = read_zones(options["tracking"]["zones"])
        return ZonesSettings(zones, options["selection"]["classes"])

    @classmethod
    def check(cls, settings: ZonesSettings, names: Sequence[str]) -> None:
        from detector.tracks.book import class_ids_of

        for zones in settings.file.each():
            class_ids_of(zones, settings.file.path, settings.classes, names)

    @classmethod
    def redraw(cls, options: Mapping[str, Any], camera: str, drawing: str) -> tuple[Any, str, str]:
        from detector.tracks.drawn import put_drawing

        file, text, changes = put_drawing(options["tracking"]["zones"], camera, drawing)
        return ZonesSettings(file, options["selection"]["classes"]), text, changes

    def __init__(
        self, settings: ZonesSettings, info: SourceInfo, names: Sequence[str], conf: float
    ) -> None:
        from detector.tracks.book import Books

        self._books = Books(settings.file, settings.classes, names, info)
        self._ordered = info.kind == "pictures"

    def change(self, camera: str, settings: ZonesSettings) -> None:
        self._books.change(camera, settings.file)

    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        from detector.tracks.motion import STEP_S

        book = self._books.find(frame.arrival.camera if frame.arrival else "")
        if book is None:
            return detections
        time_s = frame.index * STEP_S if self._ordered else frame.time_s
        return replace(detections, scene=book.update(frame, detections, time_s))

    def close(self) -> Sequence[str]:
        self._books.finish()
        return ()

    def findings(self) -> dict[str, Any]:
        return self._books.findings()
