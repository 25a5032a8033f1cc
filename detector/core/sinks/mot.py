"""MOTChallenge rows: frame,id,x,y,w,h,conf,class,visibility.

Frames and classes count from 1. The id is that of the track (--track), and objects without one are
left out, so that it is a tracker's file as the challenge wants it; where nothing is tracked all ids
are -1. The visibility is always 1, because a detector does not know it.
"""

from __future__ import annotations

from pathlib import Path

from detector.core.sinks._rows import RowsSink
from detector.core.types import Detections, Frame


class MotSink(RowsSink):
    name = "mot"
    suffixes = (".mot.txt", ".txt")
    options = ("remark",)

    def __init__(self, path: Path, *, remark: str = "") -> None:
        """The format has no place for ``remark``, so it becomes a note of the run."""
        super().__init__(path)
        if remark:
            self.notes.append(f"{self.path}: {remark}; the format cannot record this")

    def rows(self, frame: Frame, detections: Detections) -> str:
        if detections.track_ids is not None:
            detections = detections.only(detections.track_ids >= 0)
        boxes, scores, ids, tracks = (
            detections.boxes.tolist(),
            detections.scores.tolist(),
            detections.class_ids.tolist(),
            detections.track_list(),
        )
        return "".join(
            f"{frame.index + 1},{-1 if track is None else track},"
            f"{x1:.2f},{y1:.2f},{x2 - x1:.2f},{y2 - y1:.2f},"
            f"{score:.6f},{class_id + 1},1\n"
            for (x1, y1, x2, y2), score, class_id, track in zip(
                boxes, scores, ids, tracks, strict=True
            )
        )
