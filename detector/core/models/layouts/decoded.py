"""Rows of a box in network pixels, an objectness, and a probability for each class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from detector.core.models.layouts.base import Bound, Example, Layout
from detector.core.models.layouts.seen import PYRAMIDS, WITH_TINY, count_cells
from detector.core.stages.readings import Columns, Reading

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.evidence import Evidence
    from detector.core.models.layouts.plans import ReadyMade


def decoded() -> Reading:
    """[B, N, 5 + C], boxes as centres and sizes."""
    return Reading(Columns(0, 0, 4), Columns(0, 5), objectness=Columns(0, 4, 1))


class Decoded(Layout):
    name = "decoded"
    shape = "[batch, rows, 5 + classes] with rows = 3 boxes a cell"
    order = 10
    usual_family = "yolov5"

    def in_graph(self, evidence: Evidence) -> Bound | None:
        if evidence.has_boxes_apart():
            return None
        for name, rows, columns in evidence.rank3_outputs():
            if columns < 6:
                continue
            asked = (
                evidence.forced
                and rows > columns
                and not evidence.is_raw(name)
                and not evidence.looks_finished(rows, columns)
            )
            if evidence.pyramid(rows, 3, WITH_TINY) or asked:
                return self.bound(decoded(), (name,), columns - 5)
            # One box a cell: decoded YOLOX (e^size in its graph), or YOLOv6, by name.
            if (
                evidence.pyramid(rows, 1)
                and (evidence.has_operator("Exp") or evidence.named()[0] == "yolov6")
                and not evidence.is_raw(name)
                and evidence.fits_names(columns - 5)
            ):
                return self.bound(decoded(), (name,), columns - 5, family="yolox")
        return None

    def in_plan(self, seen: ReadyMade) -> Bound | None:
        """Bind an output with as many columns as the names need."""
        if (table := seen.only()) is None or not seen.names or seen.finished:
            return None
        name, rows, columns = table
        if columns != 5 + len(seen.names):
            return None
        if columns == 6 and not (seen.pyramid(rows, 1) or seen.pyramid(rows, 3)):
            # Rows of one class are as wide as detections: only their number tells them apart.
            return None
        return self.bound(decoded(), (name,), columns - 5)

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        rows = 3 * count_cells(height, width, PYRAMIDS[0])
        yield self.bound(decoded(), ("rows",), classes), [(1, rows, 5 + classes)]


LAYOUT = Decoded()
