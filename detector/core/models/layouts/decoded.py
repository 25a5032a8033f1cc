"""Each row holds a box in network pixels, its objectness, and a probability for each class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from detector.core.models.layouts.base import Bound, Example, Layout
from detector.core.models.layouts.output_shapes import PYRAMIDS, WITH_TINY, count_cells
from detector.core.stages.readings import Columns, Reading

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.evidence import Evidence
    from detector.core.models.layouts.plans import ReadyMade


def decoded() -> Reading:
    """Read [B, N, 5 + C]. Boxes are centres and sizes."""
    return Reading(Columns(0, 0, 4), Columns(0, 5), objectness=Columns(0, 4, 1))


class Decoded(Layout):
    name = "decoded"
    shape = "[batch, rows, 5 + classes] with 3 rows per cell"
    order = 10
    usual_family = "yolov5"

    def in_graph(self, evidence: Evidence) -> Bound | None:
        if evidence.has_separate_boxes():
            return None
        for name, rows, columns in evidence.rank3_outputs():
            if columns < 6:
                continue
            forced = (
                evidence.forced
                and rows > columns
                and not evidence.is_raw(name)
                and not evidence.looks_like_list(rows, columns)
            )
            if evidence.pyramid(rows, 3, WITH_TINY) or forced:
                return self.bind(decoded(), (name,), columns - 5)
            # One box per cell: a decoded YOLOX (shown by an Exp) or a YOLOv6 (shown by its name).
            if (
                evidence.pyramid(rows, 1)
                and (evidence.has_operator("Exp") or evidence.stated_family()[0] == "yolov6")
                and not evidence.is_raw(name)
                and evidence.fits_names(columns - 5)
            ):
                return self.bind(decoded(), (name,), columns - 5, family="yolox")
        return None

    def in_plan(self, plan: ReadyMade) -> Bound | None:
        """Match an output with five columns (box, objectness) and one for each class name."""
        if (table := plan.only()) is None or not plan.names or plan.finished:
            return None
        name, rows, columns = table
        if columns != 5 + len(plan.names):
            return None
        if columns == 6 and not (plan.pyramid(rows, 1) or plan.pyramid(rows, 3)):
            return None  # six columns are also the width of finished detections
        return self.bind(decoded(), (name,), columns - 5)

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        rows = 3 * count_cells(height, width, PYRAMIDS[0])
        yield self.bind(decoded(), ("rows",), classes), [(1, rows, 5 + classes)]


LAYOUT = Decoded()
