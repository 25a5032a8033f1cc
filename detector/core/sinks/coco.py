"""COCO JSON: a dataset (annotations with scores, images, categories), and a separate results list.

``COCO(dataset)`` of pycocotools and faster-coco-eval reads the dataset, and ``coco.loadRes(list)``
reads the results list, which has the same image and category ids. Annotations are written frame by
frame; the list of images, some 120 bytes each, stays in memory until the end. Image ids are frame
numbers + 1 and category ids are class ids + 1, because some readers take 0 to mean "none".

If the run writes annotated pictures, ``file_name`` is their path relative to the folder of the JSON
file. Otherwise it is the source picture's path relative to the source's folder, as label tools
expect. For a video's frame it is ``in.mp4#7``. ``source`` is the source picture's path relative to
the JSON file's folder, or absolute. ``segmentation`` is the box, as in ``loadRes``: ``annToMask``
needs it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detector.core.errors.guard import refuse_kept
from detector.core.errors.writing import utf8
from detector.core.sinks._naming import FrameNames
from detector.core.sinks._partial import output_errors
from detector.core.sinks._rows import RowsSink, python_values
from detector.core.types import Detections, Frame, SourceInfo

SUFFIX, RESULTS = ".coco.json", ".coco-results.json"
encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def results_path(path: Path) -> Path:
    """Return in.coco-results.json for in.coco.json or in.json."""
    name = path.name
    stem = name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else path.stem
    return path.with_name(stem + RESULTS)


def make_results(
    image_id: int,
    detections: Detections,
    category_ids: Mapping[int, int] | None = None,
    digits: int = 2,
) -> Iterator[dict[str, Any]]:
    """Yield one row for each detection, as in COCO's results format. ``category_ids``: class id ->
    id to write; other classes are omitted. If it is None, the id to write is the class id + 1.
    ``digits``: decimals of coordinates."""
    for (x1, y1, x2, y2), score, class_id, track in python_values(detections):
        category = class_id + 1 if category_ids is None else category_ids.get(class_id)
        if category is None:
            continue
        yield {
            "image_id": image_id,
            "category_id": category,
            "bbox": [round(value, digits) + 0.0 for value in (x1, y1, x2 - x1, y2 - y1)],
            "score": round(score, 6),
            **({} if track is None else {"track_id": track}),
        }


def _make_relative(path: str | Path, folder: str | Path) -> str:
    """Return the path relative to the folder, or absolute if outside it: readers refuse ``..``."""
    if "://" in str(path):  # an address
        return str(path)
    below = os.path.relpath(path, folder)
    return os.path.abspath(path) if below.split(os.sep)[0] == os.pardir else below


class CocoResults(RowsSink):
    header = "["

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._has_rows = False

    def rows(self, frame: Frame, detections: Detections) -> str:
        lines = [f"\n{encode(row)}" for row in make_results(frame.index + 1, detections)]
        separator = "," if self._has_rows and lines else ""
        self._has_rows = self._has_rows or bool(lines)
        return separator + ",".join(lines)

    def close(self) -> Path:
        if self._partial is not None:
            self._append("\n]\n")
        return super().close()

    def discard(self) -> None:
        self._whole_bytes = 0
        self.abort()


class CocoSink(RowsSink):
    name = "coco"
    suffixes = (".coco.json", ".json")
    order = 1  # after the other sinks of rows: closing writes a list, which may fill the disk
    options = ("remark", "names")

    def __init__(self, path: Path, *, remark: str = "", names: FrameNames | None = None) -> None:
        super().__init__(path)
        info = {
            "description": "detections of detect-video",
            **({"remark": remark} if remark else {}),
        }
        self.header = f'{{"info":{encode(info)},"licenses":[],"annotations":['
        self._folder = os.path.abspath(self.path.parent)
        self._frames = names or FrameNames()
        self._last: dict[str, Any] | None = None  # last frame, whose picture may not be written yet
        self._images: list[str] = []
        self._end_positions: list[int] = []  # size of the file after each frame, in bytes
        self._names: tuple[str, ...] = ()
        self._count = 0  # annotations so far
        self._results = CocoResults(results_path(path))

    def open(self, info: SourceInfo) -> None:
        refuse_kept(self._results.path)
        super().open(info)
        path = Path(info.path)  # a folder, a pattern in a folder, or a picture
        self._root = next((folder for folder in (path, *path.parents) if folder.is_dir()), Path())
        self._frames.make_unique()  # Datumaro would confuse a.jpg with a.png
        try:
            self._results.open(info)
        except BaseException:
            super().abort()
            raise

    def write(self, frame: Frame, detections: Detections) -> None:
        self._add_last_image()
        super().write(frame, detections)
        self._results.write(frame, detections)
        height, width = frame.size
        image = {"id": frame.index + 1, "file_name": "", "width": width, "height": height}
        if frame.path is None:
            image["file_name"] = f"{Path(self._info.path).name}#{frame.index}"
            image["frame_index"] = frame.index
        else:
            image["file_name"] = _make_relative(frame.path, self._root)
            if image["file_name"] != (source := _make_relative(frame.path, self._folder)):
                image["source"] = source
        if frame.taken is not None:
            image["date_captured"] = frame.taken
        if frame.coasting:
            image["inferred"] = False
        self._last = image
        self._end_positions.append(self._whole_bytes)
        self._names = self._names or detections.names

    def _add_last_image(self) -> None:
        """Add the last frame, whose picture has now been written, to the list of images."""
        if self._last is None:
            return
        written = self._frames.written
        if written is not None and written[0] + 1 == self._last["id"]:
            self._last.setdefault("source", self._last["file_name"])
            self._last["file_name"] = _make_relative(written[1], self._folder)
        self._images.append(encode(self._last))
        self._last = None

    def rows(self, frame: Frame, detections: Detections) -> str:
        lines = []
        for row in make_results(frame.index + 1, detections):
            self._count += 1
            x, y, width, height = row["bbox"]
            right, bottom = round(x + width, 2), round(y + height, 2)
            row = {"id": self._count, **row, "area": round(width * height, 2), "iscrowd": 0}
            row["segmentation"] = [[x, y, x, bottom, right, bottom, right, y]]
            lines.append(f"{',' if self._count > 1 else ''}\n{encode(row)}")
        return "".join(lines)

    def _footer(self, frames: int) -> str:
        categories = [
            {"id": class_id + 1, "name": name, "supercategory": ""}
            for class_id, name in enumerate(self._names)
        ]
        images = ",\n".join(self._images[:frames])
        return f'\n],"images":[\n{images}\n],"categories":{encode(categories)}}}\n'

    def close(self) -> Path:
        if self._partial is not None:
            self.beside = [self._results.close()]
            self._add_last_image()
            self._append(self._footer(len(self._images)))
            self.notes.append(f"coco: the same detections as a results list: {self._results.path}")
        return super().close()

    def abort(self) -> Path | None:
        """Keep as many frames as fit on disk with their list of images. Delete the results list."""
        self._results.discard()
        self._add_last_image()
        if self._partial is None or not self._images:
            self._whole_bytes = 0  # makes ``abort`` delete the file
            return super().abort()
        frames = self._count_fitting(self._end_positions[-1])
        try:
            with output_errors(self.path):
                os.ftruncate(self._partial.fd, self._end_positions[frames - 1])
                os.lseek(self._partial.fd, 0, os.SEEK_END)
                self._whole_bytes = self._end_positions[frames - 1]
                self._append(self._footer(frames))
        except Exception:
            self._whole_bytes = 0
        return super().abort()

    def _count_fitting(self, space: int) -> int:
        """Return how many frames to keep: all if the disk has room for the list of images, else as
        many as fit into ``space`` bytes together with their list."""
        assert self._partial is not None
        try:
            disk = os.fstatvfs(self._partial.fd)
            free = disk.f_bavail * disk.f_frsize
        except OSError:
            free = 0
        frames = len(self._images)
        lists = sum(len(utf8(image)) + 2 for image in self._images)
        if free > 2 * lists + (1 << 16):
            return frames
        while frames > 1 and self._end_positions[frames - 1] + lists + 4096 > space:
            frames -= 1
            lists -= len(utf8(self._images[frames])) + 2
        return frames
