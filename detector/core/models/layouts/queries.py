"""One row per query of a transformer: a box in 0..1 and scores, in one output or in two."""

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


def queries(height: int, width: int, form: str) -> Reading:
    """Read one output, "joined" [B, Q, 4 + C] or "numbered" [B, Q, 6] (box, score, class). With
    "logits" or "probabilities", read two outputs: scores [B, Q, C] and boxes [B, Q, 4]."""
    unit = (float(width), float(height))
    if form == "numbered":
        return Reading(Columns(0, 0, 4), Columns(0, 4, 1), unit=unit, classes=Columns(0, 5, 1))
    if form == "joined":
        return Reading(Columns(0, 0, 4), Columns(0, 4), unit=unit)
    # Like RT-DETR's own code, allow several classes for one query.
    return Reading(Columns(1, 0, 4), Columns(0), unit=unit, values=form, several=True)


class Queries(Layout):
    name = "queries"
    shape = (
        "[batch, queries, 4 + classes], or [batch, queries, 6] (box, score, class), or two "
        "outputs: boxes [batch, queries, 4] and logits [batch, queries, classes]"
    )
    order = 40
    usual_family = "rtdetr"
    needs_nms = False

    def in_graph(self, evidence: Evidence) -> Bound | None:
        named = evidence.stated_family()[0] == "rtdetr" or evidence.forced
        # Match first kernels of 3x3 (RT-DETR). DETRs with 7x7 or patches need normalised input.
        similar = evidence.has_operator("GridSample") and (
            evidence.has_exporter_metadata() or evidence.stem() == {3}
        )
        if not named and not similar:
            return None
        outputs = list(evidence.rank3_outputs())
        boxes = [(name, rows) for name, rows, columns in outputs if columns == 4]
        if len(boxes) > 1:  # the scores of four classes have four columns, too
            boxes = [(name, rows) for name, rows in boxes if "box" in name.lower()]
        if len(boxes) == 1:
            boxes_name, count = boxes[0]
            for name, rows, columns in outputs:
                if name != boxes_name and rows == count:
                    maker = evidence.maker(name)
                    is_sigmoid = maker is not None and maker.op_type == "Sigmoid"
                    form = "probabilities" if is_sigmoid else "logits"
                    return self._bind_form(evidence, (name, boxes_name), columns, form)
        for name, rows, columns in outputs:
            if (
                len(outputs) == 1
                and columns >= 5
                and rows <= MAX_DETECTIONS
                and not evidence.pyramid(columns, 1)
            ):
                if evidence.ends_in_class(name, columns):
                    return self._bind_form(evidence, (name,), None, "numbered")
                return self._bind_form(evidence, (name,), columns - 4, "joined")
        return None

    def in_plan(self, plan: ReadyMade) -> Bound | None:
        """Match only if the header names RT-DETR. Other plans' rows may be after NMS."""
        if (table := plan.only()) is None or not self.is_named(plan):
            return None
        name, _, columns = table
        if columns == 6 and len(plan.names) not in (0, 2):
            return self._bind_form(plan, (name,), None, "numbered")
        return self._bind_form(plan, (name,), columns - 4, "joined")

    def is_named(self, plan: ReadyMade) -> bool:
        return re.search(r"rt-?detr", plan.about, re.IGNORECASE) is not None

    def _bind_form(
        self, model: Evidence | ReadyMade, outputs: tuple[str, ...], classes: int | None, form: str
    ) -> Bound:
        return self.bind(queries(model.height, model.width, form), outputs, classes)

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        shapes: dict[str, list[Shape]] = {
            "joined": [(1, 300, 4 + classes)],
            "numbered": [(1, 300, 6)],
            "probabilities": [(1, 300, classes), (1, 300, 4)],
            "logits": [(1, 300, classes), (1, 300, 4)],
        }
        for form, each in shapes.items():
            known = None if form == "numbered" else classes
            outputs = ("scores", "boxes")[: len(each)]
            yield self.bind(queries(height, width, form), outputs, known), each


LAYOUT = Queries()
