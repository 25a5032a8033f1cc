"""Columns of one box a cell: a box in network pixels, and a probability for each class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detector.core.errors import ModelError
from detector.core.models.layouts.base import Bound, Example, Layout
from detector.core.models.layouts.seen import PYRAMIDS, WITH_TINY, count_cells
from detector.core.stages.readings import Columns, Reading

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.evidence import Evidence
    from detector.core.models.layouts.plans import ReadyMade


def anchor_free(*, rows: bool = False) -> Reading:
    """[B, 4 + C, N]; with ``rows`` [B, N, 4 + C]. Boxes as centres and sizes."""
    return Reading(Columns(0, 0, 4, not rows), Columns(0, 4, None, not rows))


class AnchorFree(Layout):
    name = "anchor-free"
    shape = "[batch, 4 + classes, cells]"
    order = 30
    usual_family = "yolov8"

    def in_graph(self, evidence: Evidence) -> Bound | None:
        """Any number of cells will do where the user names the family: the maps may be unusual."""
        if evidence.has_boxes_apart():
            return None
        branches = []
        for name, first, second in evidence.rank3_outputs():
            fits = evidence.pyramid(second, 1, WITH_TINY) or (evidence.forced and second > first)
            if first >= 5 and fits and evidence.fits_names(first - 4):
                branches.append(self.bound(anchor_free(), (name,), first - 4))
        if branches:
            return _main_branch(evidence, branches)
        for name, first, second in evidence.rank3_outputs():
            asked = (
                evidence.forced and first > second and not evidence.looks_finished(first, second)
            )
            if second >= 5 and (evidence.pyramid(first, 1) or asked) and not evidence.is_raw(name):
                names = evidence.metadata.names
                if evidence.forced or (names is not None and len(names) == second - 4):
                    return self.bound(anchor_free(rows=True), (name,), second - 4)
        return None

    def in_plan(self, seen: ReadyMade) -> Bound | None:
        """Also its transpose, where the names prove it."""
        if (table := seen.only()) is None or seen.finished:
            return None
        name, first, second = table
        if first > 4 and _one_box_a_cell(seen, second):
            return self.bound(anchor_free(), (name,), first - 4)
        if second == 4 + len(seen.names) > 4 and _one_box_a_cell(seen, first):
            return self.bound(anchor_free(rows=True), (name,), second - 4)
        return None

    def doubt(self, evidence: Evidence, bound: Bound) -> str | None:
        """Columns that are joined of more than a box and scores; an angle may be in 0..1 too."""
        if (classes := bound.classes) is None:
            return None
        parts = evidence.parts(bound.outputs[0], 4 + classes)
        ends = [sum(parts[: at + 1]) for at in range(len(parts))]
        if 4 not in ends or len(parts) - ends.index(4) <= 2:
            return None
        behind = sum(parts[ends.index(4) + 2 :])
        return (
            f"its {4 + classes} columns are {' + '.join(map(str, parts))}, with keypoints, an "
            f"angle or masks (not classes) in the last {behind}"
        )

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        rows, columns = count_cells(height, width, PYRAMIDS[0]), 4 + classes
        yield self.bound(anchor_free(), ("columns",), classes), [(1, columns, rows)]
        yield self.bound(anchor_free(rows=True), ("rows",), classes), [(1, rows, columns)]


def _one_box_a_cell(seen: ReadyMade, rows: int) -> bool:
    return seen.pyramid(rows, 1) is not None


def _main_branch(evidence: Evidence, branches: list[Bound]) -> Bound:
    """Return the detecting branch of a network trained with a second one (YOLOv9): cv4 and cv5."""
    if len(branches) == 1:
        return branches[0]
    words = [evidence.words_behind(branch.outputs[0]) for branch in branches]
    main = [at for at, text in enumerate(words) if re.search(r"\bcv[45]\b", text)]
    if len(branches) == 2 and len(main) == 1:
        return branches[main[0]]
    if len(branches) == 2 and (evidence.named()[0] == "yolov9" or evidence.forced):
        return branches[1]
    names = ", ".join(branch.outputs[0] for branch in branches)
    raise ModelError(
        f"{evidence.graph.name}: has {len(branches)} branches of one shape ({names}); one may be "
        f"for training only: --family yolov9 takes the second; otherwise {evidence.how_to_say()}"
    )


LAYOUT = AnchorFree()
