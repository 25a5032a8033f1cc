"""One row per cell: offsets from the cell, logarithms of sizes, objectness and probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from detector.core.models.layouts.base import Bound, Example, Layout
from detector.core.models.layouts.output_shapes import PYRAMIDS, count_cells
from detector.core.stages.readings import Cells, Columns, Reading

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.evidence import Evidence


def grid(height: int, width: int, strides: tuple[int, ...]) -> Reading:
    """Read [B, cells, 5 + C]."""
    cells = Cells("offsets", height, width, strides)
    return Reading(Columns(0, 0, 4), Columns(0, 5), objectness=Columns(0, 4, 1), cells=cells)


class Grid(Layout):
    name = "grid"
    shape = "[batch, cells, 5 + classes]"
    order = 20
    usual_family = "yolox"

    def in_graph(self, evidence: Evidence) -> Bound | None:
        """Match rows that are not decoded. ``is_raw`` misses them after dynamic quantisation, so
        a graph without Exp also matches if it is called YOLOX, or if the user gave its family."""
        if evidence.has_separate_boxes():
            return None
        undecoded = not evidence.has_operator("Exp") and (
            evidence.forced or evidence.stated_family()[0] == "yolox"
        )
        for name, rows, columns in evidence.rank3_outputs():
            strides = evidence.pyramid(rows, 1)
            if strides is None or columns < 6 or not evidence.fits_names(columns - 5):
                continue
            if undecoded or evidence.is_raw(name):
                reading = grid(evidence.height, evidence.width, strides)
                return self.bind(reading, (name,), columns - 5, strides=strides)
        return None

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        reading = grid(height, width, PYRAMIDS[0])
        rows = count_cells(height, width, PYRAMIDS[0])
        yield self.bind(reading, ("rows",), classes), [(1, rows, 5 + classes)]


LAYOUT = Grid()
