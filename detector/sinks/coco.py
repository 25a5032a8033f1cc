"""One COCO JSON file: annotations with scores, images, categories.

pycocotools and faster-coco-eval read it as it is. Annotations go to the file as they come. The list
of images, some 120 bytes each, waits in memory for the end. Image ids are frame numbers + 1 and
category ids are class ids + 1, because some readers take 0 to mean "none".
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from detector.sinks._partial import output_errors
from detector.sinks._rows import RowsSink
from detector.types import Detections, Frame

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class CocoSink(RowsSink):
    name = "coco"
    suffixes = (".coco.json", ".json")
    order = 1  # after the other rows: its list of images is only written when it is closed
    options = ("remark",)

    def __init__(self, path: Path, *, remark: str = "") -> None:
        """``remark`` is in ``info`` under that key. Without one there is no such key."""
        super().__init__(path)
        info = {
            "description": "detections of detect-video",
            **({"remark": remark} if remark else {}),
        }
        self.header = f'{{"info":{_encode(info)},"annotations":['
        self._images: list[str] = []
        self._ends: list[int] = []  # size of the file after each frame, bytes
        self._names: tuple[str, ...] = ()
        self._count = 0  # annotations

    def write(self, frame: Frame, detections: Detections) -> None:
        super().write(frame, detections)
        name = (
            frame.path if frame.path is not None else f"{Path(self._info.path).name}#{frame.index}"
        )
        height, width = frame.image.shape[:2]
        image = {"id": frame.index + 1, "file_name": name, "width": width, "height": height}
        self._images.append(
            _encode({**image, "frame_index": frame.index} if frame.path is None else image)
        )
        self._ends.append(self._whole_bytes)
        self._names = self._names or detections.names

    def rows(self, frame: Frame, detections: Detections) -> str:
        boxes, scores, ids = (
            detections.boxes.tolist(),
            detections.scores.tolist(),
            detections.class_ids.tolist(),
        )
        lines = []
        for (x1, y1, x2, y2), score, class_id in zip(boxes, scores, ids, strict=True):
            self._count += 1
            box = [round(value, 2) + 0.0 for value in (x1, y1, x2 - x1, y2 - y1)]
            row = {
                "id": self._count,
                "image_id": frame.index + 1,
                "category_id": class_id + 1,
                "bbox": box,
                "area": round(box[2] * box[3], 2),
                "iscrowd": 0,
                "score": round(score, 6),
            }
            lines.append(f"{',' if self._count > 1 else ''}\n{_encode(row)}")
        return "".join(lines)

    def _footer(self, frames: int) -> str:
        categories = [
            {"id": class_id + 1, "name": name} for class_id, name in enumerate(self._names)
        ]
        images = ",\n".join(self._images[:frames])
        return f'\n],"images":[\n{images}\n],"categories":{_encode(categories)}}}\n'

    def close(self) -> Path:
        if self._partial is not None:
            self._append(self._footer(len(self._images)))
        return super().close()

    def abort(self) -> Path | None:
        """Keeps as many frames as fit, with their list of images, in the space that the file
        already has.
        """
        if self._partial is None or not self._images:
            self._whole_bytes = 0  # nothing to keep
            return super().abort()
        frames = self._count_fitting(self._ends[-1])
        try:
            with output_errors(self.path):
                os.ftruncate(self._partial.fd, self._ends[frames - 1])
                os.lseek(self._partial.fd, 0, os.SEEK_END)
                self._whole_bytes = self._ends[frames - 1]
                self._append(self._footer(frames))
        except Exception:
            self._whole_bytes = 0
        return super().abort()

    def _count_fitting(self, space: int) -> int:
        """How many frames, with their list, take at most ``space`` bytes; all where the disk is not
        full.
        """
        assert self._partial is not None
        try:
            disk = os.fstatvfs(self._partial.fd)
            free = disk.f_bavail * disk.f_frsize
        except OSError:
            free = 0
        frames = len(self._images)
        lists = sum(len(image.encode("utf-8", "backslashreplace")) + 2 for image in self._images)
        if free > 2 * lists + (1 << 16):
            return frames
        while frames > 1 and self._ends[frames - 1] + lists + 4096 > space:
            frames -= 1
            lists -= len(self._images[frames].encode("utf-8", "backslashreplace")) + 2
        return frames
