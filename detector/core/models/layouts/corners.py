"""Box corners in 0..1, and scores (objectness x class probability) in another output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from detector.core.models.layouts.base import Bound, Example, Layout
from detector.core.stages.readings import Columns, Reading

if TYPE_CHECKING:
    from detector.core.models.layouts.output_shapes import OutputShapes
    from detector.core.models.layouts.plans import ReadyMade


def corners(height: int, width: int) -> Reading:
    """Read boxes [B, N, 1, 4] and scores [B, N, C]."""
    unit = (float(width), float(height))
    return Reading(Columns(0, 0, 4), Columns(1), form="xyxy", unit=unit)


class Corners(Layout):
    """The layout of pytorch-YOLOv4's Darknet2ONNX. No other layout has these shapes."""

    name = "corners"
    shape = "boxes [batch, rows, 1, 4] and scores [batch, rows, classes]"
    order = 60
    usual_family = "yolov4"

    def in_plan(self, plan: ReadyMade) -> Bound | None:
        return self.in_graph(plan)

    def in_graph(self, shapes: OutputShapes) -> Bound | None:
        outputs, scores = shapes.outputs(), list(shapes.rank3_outputs())
        boxes = [name for name, dims in outputs.items() if dims[2:] == (1, 4)]
        if len(outputs) != 2 or len(boxes) != 1 or len(scores) != 1:
            return None
        name, rows, classes = scores[0]
        if outputs[boxes[0]][1] != rows or classes < 1 or not shapes.fits_names(classes):
            return None
        return self.bind(corners(shapes.height, shapes.width), (boxes[0], name), classes)

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        bound = self.bind(corners(height, width), ("boxes", "scores"), classes)
        yield bound, [(1, 300, 1, 4), (1, 300, classes)]


LAYOUT = Corners()
