"""MOTChallenge's rows: frame,id,x,y,w,h,conf,class,visibility.

Frames and classes count from 1. The id is -1: nothing is tracked. The visibility is 1: a detector does not know it.
"""

from __future__ import annotations

from pathlib import Path

from detector.sinks.base import RowsSink
from detector.types import Detections, Frame


class MotSink(RowsSink):
    name = "mot"
    suffix = ".mot.txt"

    def __init__(self, path: Path, *, remark: str = "") -> None:
        """``remark`` has no place in the format: it is a note of the run."""
        super().__init__(path)
        if remark:
            self.notes.append(f"{self.path}: {remark}; the rows do not say so")

    def rows(self, frame: Frame, detections: Detections) -> str:
        boxes, scores, ids = (
            detections.boxes.tolist(),
            detections.scores.tolist(),
            detections.class_ids.tolist(),
        )
        return "".join(
            f"{frame.index + 1},-1,{x1:.2f},{y1:.2f},{x2 - x1:.2f},{y2 - y1:.2f},{score:.6f},{class_id + 1},1\n"
            for (x1, y1, x2, y2), score, class_id in zip(boxes, scores, ids, strict=True)
        )
