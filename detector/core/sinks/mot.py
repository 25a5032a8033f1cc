"""MOTChallenge results: frame,id,x,y,w,h,conf,-1,-1,-1. Frames and pixels are counted from 1.

With --track, the id is that of the track, and objects without a track are omitted, as the challenge
requires. Without --track, all ids are -1. MOTChallenge has one class. If --classes does not select
a single class, column 8 is the class, counted from 1, and column 9 is a visibility of 1.
"""

from __future__ import annotations

from pathlib import Path

from detector.core.sinks._rows import RowsSink, python_values
from detector.core.types import Detections, Frame


class MotSink(RowsSink):
    name = "mot"
    suffixes = (".mot.txt", ".txt")
    options = ("remark", "one_class")

    def __init__(self, path: Path, *, remark: str = "", one_class: bool = False) -> None:
        super().__init__(path)
        self._one_class, self._last_class = one_class, 0
        if remark:
            self.notes.append(f"{self.path}: {remark}; the format cannot record this")

    def rows(self, frame: Frame, detections: Detections) -> str:
        if detections.track_ids is not None:
            detections = detections.only(detections.track_ids >= 0)
        if not self._one_class:
            self._last_class = max(self._last_class, *detections.class_ids.tolist(), 0)
        return "".join(
            f"{frame.index + 1},{-1 if track is None else track},"
            f"{x1 + 1:.2f},{y1 + 1:.2f},{x2 - x1:.2f},{y2 - y1:.2f},"
            f"{score:.6f},{'-1,-1' if self._one_class else f'{class_id + 1},1'},-1\n"
            for (x1, y1, x2, y2), score, class_id, track in python_values(detections)
        )

    def close(self) -> Path:
        if self._last_class and self._partial is not None:
            self.notes.append(
                f"{self.path}: column 8 is the class, but MOTChallenge has a single class and "
                "TrackEval refuses more; select a class with --classes NAME"
            )
        return super().close()
