"""The layouts in which exporters of YOLOs write their outputs, as readings of them.

They are told apart by the number of rows: three boxes a cell of the network's maps, one box a cell,
or a few hundred finished detections. Who finds out which it is: formats/onnx/recognise.py for ONNX
files, plan_heads.py for TensorRT plans, own_files.py for files of ours.
"""

from __future__ import annotations

from detector.core.stages.readings import Cells, Columns, Reading

# What the columns hold. Boxes are centre x, centre y, width, height.
DECODED = "decoded"  # a box in network pixels, objectness, class probabilities
GRID = "grid"  # a box as offsets from its cell and logarithms of sizes, objectness, probabilities
ANCHOR_FREE = "anchor-free"  # a box in network pixels, class probabilities
QUERIES = "queries"  # a box in 0..1, class probabilities or logits, joined or apart
END_TO_END = "end-to-end"  # finished detections: box corners, score, class; joined or apart
CORNERS = "corners"  # box corners in 0..1; apart from them, objectness x class probabilities

MAX_DETECTIONS = 3000  # rows of a list of finished detections; the smallest maps have fewer cells

# Strides of a network's maps, from the largest map to the smallest; P2 and P6 models have one more.
PYRAMIDS = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
# YOLOv3-tiny has two maps. They have so few cells that a list of detections may be as long, so only
# layouts of another shape than such a list look for them.
WITH_TINY = (*PYRAMIDS, (16, 32))


def count_cells(height: int, width: int, strides: tuple[int, ...]) -> int:
    """The number of cells of all maps."""
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


def decoded() -> Reading:
    """[B, N, 5 + C]."""
    return Reading(Columns(0, 0, 4), Columns(0, 5), objectness=Columns(0, 4, 1))


def grid(height: int, width: int, strides: tuple[int, ...]) -> Reading:
    """[B, cells, 5 + C]."""
    cells = Cells("offsets", height, width, strides)
    return Reading(Columns(0, 0, 4), Columns(0, 5), objectness=Columns(0, 4, 1), cells=cells)


def anchor_free(*, rows: bool = False) -> Reading:
    """[B, 4 + C, N]; with ``rows`` [B, N, 4 + C]."""
    return Reading(Columns(0, 0, 4, not rows), Columns(0, 4, None, not rows))


def queries(height: int, width: int, form: str) -> Reading:
    """``form``: "joined" [B, Q, 4 + C]; "numbered" [B, Q, 6], a score and a class in place of the
    scores; "probabilities" or "logits": scores [B, Q, C], and boxes [B, Q, 4] behind them."""
    unit = (float(width), float(height))
    if form == "numbered":
        return Reading(Columns(0, 0, 4), Columns(0, 4, 1), unit=unit, classes=Columns(0, 5, 1))
    if form == "joined":
        return Reading(Columns(0, 0, 4), Columns(0, 4), unit=unit)
    # Apart, as RT-DETR's own code has them: it takes the best of all pairs of a query and a class.
    return Reading(Columns(1, 0, 4), Columns(0), unit=unit, values=form, several=True)


def corners(height: int, width: int) -> Reading:
    """Boxes [B, N, 1, 4] in 0..1, scores [B, N, C]."""
    unit = (float(width), float(height))
    return Reading(Columns(0, 0, 4), Columns(1), form="xyxy", unit=unit)


# Finished detections: the columns of boxes, scores and classes.
FINISHED = {
    "rows": (Columns(0, 0, 4), Columns(0, 4, 1), Columns(0, 5, 1)),  # [B, K, 6]
    "batch-rows": (Columns(0, 1, 4), Columns(0, 6, 1), Columns(0, 5, 1)),  # [K, 7], YOLOv7
    "parts": (Columns(0, 0, 4), Columns(1, 0, 1), Columns(2, 0, 1)),  # [B, K, 4], twice [B, K]
    "boxes-with-scores": (
        Columns(0, 0, 4),
        Columns(0, 4, 1),
        Columns(1, 0, 1),
    ),  # [B, K, 5], [B, K]
}


def finished(form: str = "rows") -> Reading:
    """``form``: one of ``FINISHED``; corners in network pixels."""
    boxes, scores, classes = FINISHED[form]
    return Reading(boxes, scores, form="xyxy", classes=classes)
