"""Finished detections (box corners in network pixels, score, class) in one output or several."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detector.core.models.layouts.base import Bound, Example, Layout, Shape
from detector.core.models.layouts.output_shapes import MAX_DETECTIONS
from detector.core.stages.readings import Columns, Reading

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.evidence import Evidence
    from detector.core.models.layouts.plans import ReadyMade

COLUMNS = 6  # x1, y1, x2, y2, score, class
YOLO_NAMES = re.compile("yolo|ultralytics", re.IGNORECASE)
# The columns that hold boxes, scores and classes.
FINISHED = {
    "rows": (Columns(0, 0, 4), Columns(0, 4, 1), Columns(0, 5, 1)),  # [B, K, 6]
    "batch-rows": (Columns(0, 1, 4), Columns(0, 6, 1), Columns(0, 5, 1)),  # [K, 7], YOLOv7
    "parts": (Columns(0, 0, 4), Columns(1, 0, 1), Columns(2, 0, 1)),  # [B, K, 4], [B, K], [B, K]
    "boxes-with-scores": (
        Columns(0, 0, 4),
        Columns(0, 4, 1),
        Columns(1, 0, 1),
    ),  # [B, K, 5], [B, K]
}


def finished(form: str = "rows") -> Reading:
    boxes, scores, classes = FINISHED[form]
    return Reading(boxes, scores, form="xyxy", classes=classes)


class EndToEnd(Layout):
    name = "end-to-end"
    shape = "[batch, detections, 6] or the like, after NMS"
    order = 50
    usual_family = "yolov10"
    needs_nms = False

    def in_graph(self, evidence: Evidence) -> Bound | None:
        names = list(evidence.graph.outputs)
        if len(names) == 1:
            return self._match_rows(evidence, names[0])
        return self._match_parts(evidence, names)

    def _match_rows(self, evidence: Evidence, name: str) -> Bound | None:
        """Match [B, K, 6], or YOLOv7's [K, 7], whose rows begin with the picture's batch index."""
        dims = evidence.dims(name)
        if len(dims) == 3 and dims[2] == COLUMNS and (dims[1] is None or dims[1] <= MAX_DETECTIONS):
            rows = dims[1]
            stated = evidence.forced or evidence.metadata.finished
            if not (stated or evidence.is_yolo()):
                return None  # other detectors have six columns in another order
            if (
                rows is not None
                and (evidence.pyramid(rows, 1) or evidence.pyramid(rows, 3))
                and not stated
            ):
                return None
            if evidence.has_operator("GridSample") and not stated:
                return None  # maybe a transformer's raw queries: a box and two class scores
            return self.bind(finished(), (name,), None)
        # YOLOv7's columns are batch, box, class, score: the box begins in column 1.
        if len(dims) == 2 and dims[1] == 7 and evidence.find_joined_part(name, 4) == 1:
            return self.bind(finished("batch-rows"), (name,), None, bare=True)
        return None

    def _match_parts(self, evidence: Evidence, names: list[str]) -> Bound | None:
        """Match boxes [B, K, 4], scores and classes, or boxes with scores [B, K, 5] and classes."""
        dims = evidence.dims
        wide = [name for name in names if len(dims(name)) == 3 and dims(name)[2] in (4, 5)]
        flat = [name for name in names if len(dims(name)) == 2 and dims(name)[1] != 1]
        counts = [name for name in names if name not in wide and name not in flat]
        if len(wide) != 1 or not (evidence.forced or evidence.is_yolo() or wide[0] == "det_boxes"):
            return None
        if any(dims(name)[1] != dims(wide[0])[1] for name in flat):
            return None
        if len(counts) > 1 or any(dims(name)[-1:] not in ((1,), ()) for name in counts):
            return None
        scores = [name for name in flat if re.search(r"score|conf", name.lower())]
        labels = [name for name in flat if name not in scores]
        columns = dims(wide[0])[2]
        if columns == 5 and len(flat) == 1:
            return self.bind(finished("boxes-with-scores"), (wide[0], flat[0]), None)
        if columns == 4 and len(scores) == 1 and len(labels) == 1:
            return self.bind(finished("parts"), (wide[0], scores[0], labels[0]), None)
        return None

    def in_plan(self, plan: ReadyMade) -> Bound | None:
        """Match only if the header, the file name or class names show a YOLO."""
        if (table := plan.only()) is None:
            return None
        name, rows, columns = table
        if columns != COLUMNS or rows > MAX_DETECTIONS:
            return None
        if not plan.finished:
            is_yolo = plan.names or YOLO_NAMES.search(f"{plan.about}\n{plan.path.stem}")
            if not is_yolo or plan.pyramid(rows, 1) or plan.pyramid(rows, 3):
                return None
        return self.bind(finished(), (name,), None)

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        shapes: dict[str, list[Shape]] = {
            "rows": [(1, 300, 6)],
            "batch-rows": [(1, 300, 7)],
            "parts": [(1, 300, 4), (1, 300), (1, 300)],
            "boxes-with-scores": [(1, 300, 5), (1, 300)],
        }
        for form, each in shapes.items():
            outputs = ("boxes", "scores", "labels")[: len(each)]
            yield self.bind(finished(form), outputs, None), each


LAYOUT = EndToEnd()
