"""One box per cell: its coordinates in network pixels and a probability for each class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detector.core.errors import ModelError
from detector.core.models.layouts.base import Bound, Example, Layout
from detector.core.models.layouts.output_shapes import PYRAMIDS, WITH_TINY, count_cells
from detector.core.stages.readings import Columns, Reading

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.evidence import Evidence
    from detector.core.models.layouts.plans import ReadyMade


def anchor_free(*, rows: bool = False) -> Reading:
    """Read [B, 4 + C, N]; with ``rows`` [B, N, 4 + C]. Boxes are centres and sizes."""
    return Reading(Columns(0, 0, 4, not rows), Columns(0, 4, None, not rows))


class AnchorFree(Layout):
    name = "anchor-free"
    shape = "[batch, 4 + classes, cells]"
    order = 30
    usual_family = "yolov8"

    def in_graph(self, evidence: Evidence) -> Bound | None:
        """If the user names the family, accept any number of cells: the strides may be unusual."""
        if evidence.has_separate_boxes():
            return None
        branches = []
        for name, first, second in evidence.rank3_outputs():
            fits = evidence.pyramid(second, 1, WITH_TINY) or (evidence.forced and second > first)
            if first >= 5 and fits and evidence.fits_names(first - 4):
                branches.append(self.bind(anchor_free(), (name,), first - 4))
        if branches:
            return _main_branch(evidence, branches)
        for name, first, second in evidence.rank3_outputs():
            forced = (
                evidence.forced and first > second and not evidence.looks_like_list(first, second)
            )
            if second >= 5 and (evidence.pyramid(first, 1) or forced) and not evidence.is_raw(name):
                names = evidence.metadata.names
                if evidence.forced or (names is not None and len(names) == second - 4):
                    return self.bind(anchor_free(rows=True), (name,), second - 4)
        return None

    def in_plan(self, plan: ReadyMade) -> Bound | None:
        """Accept [B, N, 4 + C] only if C is the number of class names."""
        if (table := plan.only()) is None or plan.finished:
            return None
        name, first, second = table
        if first > 4 and plan.pyramid(second, 1):
            return self.bind(anchor_free(), (name,), first - 4)
        if second == 4 + len(plan.names) > 4 and plan.pyramid(first, 1):
            return self.bind(anchor_free(rows=True), (name,), second - 4)
        return None

    def doubt(self, evidence: Evidence, bound: Bound) -> str | None:
        """Report an output in which the graph joins more than a box and class scores."""
        if (classes := bound.classes) is None:
            return None
        parts = evidence.joined_widths(bound.outputs[0], 4 + classes)
        ends = [sum(parts[: at + 1]) for at in range(len(parts))]
        if 4 not in ends or len(parts) - ends.index(4) <= 2:
            return None
        extra = sum(parts[ends.index(4) + 2 :])
        return (
            f"its {4 + classes} columns are {' + '.join(map(str, parts))}, with keypoints, an "
            f"angle or masks (not classes) in the last {extra}"
        )

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        rows, columns = count_cells(height, width, PYRAMIDS[0]), 4 + classes
        yield self.bind(anchor_free(), ("columns",), classes), [(1, columns, rows)]
        yield self.bind(anchor_free(rows=True), ("rows",), classes), [(1, rows, columns)]


def _main_branch(evidence: Evidence, branches: list[Bound]) -> Bound:
    """Return the branch for detection (cv4 or cv5). YOLOv9 has another branch for training."""
    if len(branches) == 1:
        return branches[0]
    words = [evidence.names_before(branch.outputs[0]) for branch in branches]
    main = [at for at, text in enumerate(words) if re.search(r"\bcv[45]\b", text)]
    if len(branches) == 2 and len(main) == 1:
        return branches[main[0]]
    if len(branches) == 2 and (evidence.stated_family()[0] == "yolov9" or evidence.forced):
        return branches[1]
    names = ", ".join(branch.outputs[0] for branch in branches)
    raise ModelError(
        f"{evidence.graph.name}: has {len(branches)} outputs of the same shape ({names}); one may "
        "be for training only; for YOLOv9, add --family yolov9, which uses the second output; "
        f"otherwise {evidence.advise()}"
    )


LAYOUT = AnchorFree()
