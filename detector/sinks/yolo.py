"""YOLO's text files in a folder: one per frame, named like the picture, and classes.txt.

A row is "class cx cy w h", as trainers read it. With ``save_conf`` the score is a sixth number,
which ``eval --detections`` needs. Classes count from 0; the box is relative to the picture's size.
A frame without detections has an empty file. Frames of a video are named frame_000123.txt.
"""

from __future__ import annotations

from pathlib import Path

from detector.errors.writing import utf8
from detector.sinks._folder import FolderSink, picture_name
from detector.types import Detections, Frame

CLASSES = "classes.txt"


class YoloSink(FolderSink):
    name = "yolo"
    suffixes = ("-labels",)  # a folder, beside that of the annotated pictures
    order = 2
    options = ("remark", "save_conf")
    manifest = ".detect-video-yolo"
    holds = "labels"

    def __init__(self, path: Path, *, remark: str = "", save_conf: bool = False) -> None:
        """The format has no place for ``remark``, so it becomes a note of the run."""
        super().__init__(path)
        self._named, self._scores = False, save_conf
        if remark:
            self.notes.append(f"{self.path}: {remark}; the format has no field that says so")

    def write(self, frame: Frame, detections: Detections) -> None:
        if not self._named:
            self._named = True
            self._taken.add(CLASSES)
            names = "".join(f"{name}\n" for name in detections.names)
            self.add(CLASSES, utf8(names))
        name = picture_name(frame)
        stem = f"frame_{frame.index:06d}" if name is None else str(name.with_suffix(""))
        height, width = frame.size
        rows = _format_rows(detections, width, height, self._scores)
        self.add(self.free_name(stem, ".txt"), rows.encode())


def _format_rows(detections: Detections, width: int, height: int, with_scores: bool) -> str:
    boxes, scores, ids = (
        detections.boxes.tolist(),
        detections.scores.tolist(),
        detections.class_ids.tolist(),
    )
    lines = []
    for (x1, y1, x2, y2), score, class_id in zip(boxes, scores, ids, strict=True):
        relative = (
            (x1 + x2) / 2 / width,
            (y1 + y2) / 2 / height,
            (x2 - x1) / width,
            (y2 - y1) / height,
        )
        numbers = (*relative, score) if with_scores else relative
        lines.append(f"{class_id} {' '.join(f'{value:.6f}' for value in numbers)}\n")
    return "".join(lines)
