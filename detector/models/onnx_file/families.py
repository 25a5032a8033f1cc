"""What each family of models wants at its input, and how its outputs may be laid out. One line a family."""

from __future__ import annotations

from dataclasses import dataclass

DECODED = "decoded"  # [B, N, 5 + classes]: cx, cy, w, h in network pixels, objectness, class probabilities
ANCHOR_FREE = "anchor-free"  # [B, 4 + classes, N]: cx, cy, w, h in network pixels, class probabilities
GRID = "grid"  # [B, N, 5 + classes] of YOLOX: offsets from cells, logarithms of sizes
END_TO_END = "end-to-end"  # [B, K, 6] or [K, 7] or boxes, scores and classes apart: finished detections
QUERIES = "queries"  # [B, Q, 4 + classes] or logits and boxes apart; boxes cx, cy, w, h in 0..1

SHAPES = {  # for messages
    DECODED: "[batch, rows, 5 + classes] with rows = 3 boxes a cell",
    ANCHOR_FREE: "[batch, 4 + classes, cells]",
    GRID: "[batch, cells, 5 + classes]",
    END_TO_END: "[batch, detections, 6] or the like, after NMS",
    QUERIES: "[batch, queries, 4 + classes], or boxes [batch, queries, 4] beside logits [batch, queries, classes]",
}


@dataclass(frozen=True, slots=True)
class Family:
    """``layouts``: what its exports give, the usual one first. ``scale``: on the 0..255 of a pixel."""

    name: str
    layouts: tuple[str, ...]
    geometry: str = "centre"
    scale: float = 1 / 255
    bgr: bool = False
    pad_value: int = 114


FAMILIES = {
    family.name: family
    for family in (
        Family("yolov5", (DECODED, ANCHOR_FREE, END_TO_END)),  # anchor-free: the later "u" models
        Family("yolov7", (DECODED, END_TO_END)),
        Family("yolov8", (ANCHOR_FREE, END_TO_END)),
        Family("yolov9", (ANCHOR_FREE, END_TO_END)),
        Family("yolov10", (END_TO_END, ANCHOR_FREE)),
        Family("yolo11", (ANCHOR_FREE, END_TO_END)),
        Family("yolo12", (ANCHOR_FREE, END_TO_END)),
        Family("yolo26", (END_TO_END, ANCHOR_FREE)),
        Family("yolox", (GRID, DECODED, END_TO_END), "top-left-truncate", 1.0, True),
        Family("rtdetr", (QUERIES,), "stretch"),
    )
}
ALIASES = {"yolov11": "yolo11", "yolov12": "yolo12", "yolov26": "yolo26", "rt-detr": "rtdetr"}

# Where nothing tells the family, the oldest one of that layout, which wants the same input.
USUAL = {DECODED: "yolov5", ANCHOR_FREE: "yolov8", GRID: "yolox", END_TO_END: "yolov10", QUERIES: "rtdetr"}


def cells(height: int, width: int, strides: tuple[int, ...]) -> int:
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


# From the largest maps to the smallest; with an extra one at either end for P2 and P6 models.
PYRAMIDS = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
