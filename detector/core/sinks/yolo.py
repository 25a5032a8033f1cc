"""A folder of YOLO's text files: one per frame, named like its picture, and classes.txt.

Labels and annotated pictures together form a dataset: images/, labels/ and data.yaml.
Without pictures, data.yaml is next to the labels and only names the classes.

A row is "class cx cy w h", as trainers read it. ``save_conf`` appends the score, which ``eval
--detections`` needs. Classes count from 0; boxes are relative to the picture's size. A frame
without detections has an empty file. A video's frames have names such as frame_000123.txt.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from detector.core.errors import OutputError
from detector.core.errors.guard import refuse_kept
from detector.core.errors.writing import sync_folder, utf8, write_whole
from detector.core.sinks._folder import FolderSink
from detector.core.sinks._naming import FrameNames
from detector.core.sinks._rows import python_values
from detector.core.types import Detections, Frame, SourceInfo

CLASSES = "classes.txt"
DESCRIPTION = "data.yaml"
HEAD = "# Written by detect-video"
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class YoloSink(FolderSink):
    name = "yolo"
    suffixes = ("-labels",)
    order = 2
    options = ("remark", "save_conf", "names")
    dataset = "labels"
    manifest = ".detect-video-yolo"
    content = "labels"

    def __init__(
        self,
        path: Path,
        *,
        remark: str = "",
        save_conf: bool = False,
        names: FrameNames | None = None,
    ) -> None:
        super().__init__(path)
        self._wrote_names, self._scores = False, save_conf
        self._names = names or FrameNames()
        self._description: bytes | None = None  # content of data.yaml, in the folder above
        if remark:
            self.notes.append(f"{self.path}: {remark}; the format cannot record this")

    def open(self, info: SourceInfo) -> None:
        super().open(info)
        self._names.make_unique(CLASSES.removesuffix(".txt"))

    def write(self, frame: Frame, detections: Detections) -> None:
        if not self._wrote_names:
            self._wrote_names = True
            self._write_names(detections.names)
        height, width = frame.size
        rows = _format_rows(detections, width, height, self._scores)
        self.add(self.free_name(self._names.stem(frame), ".txt"), rows.encode())

    def _write_names(self, names: tuple[str, ...]) -> None:
        self.add(CLASSES, utf8("".join(f"{name}\n" for name in names)))
        pictures = self._names.folder
        if pictures is None or (pictures.parent, self.dataset) != (
            self.path.parent,
            self.path.name,
        ):
            self.add(DESCRIPTION, utf8(_describe(names, None)))
            return
        _refuse_foreign(self.path.parent / DESCRIPTION)
        self._description = utf8(_describe(names, pictures.name))

    def close(self) -> Path | None:
        path = super().close()
        if self._description is not None:
            self.beside = [self.path.parent / DESCRIPTION]
            write_whole(self.beside[0], self._description, ours=True)
            sync_folder(self.path.parent.parent)  # the dataset's folder may be new
            self._description = None
        return path


def _refuse_foreign(path: Path) -> None:
    """Raise UsageError for a file that the run reads, OutputError for one that we did not write."""
    refuse_kept(path)
    try:
        ours = path.read_bytes().startswith(HEAD.encode())
    except FileNotFoundError:
        return
    except OSError:
        ours = False
    if not ours:
        raise OutputError(
            f"cannot write {path}: it already exists, and detect-video did not write it; move it, "
            "or choose another folder with -o"
        )


def _describe(names: tuple[str, ...], pictures: str | None) -> str:
    if pictures is None:
        lines = [f"{HEAD}: the class names. Pictures are not written."]
    else:
        lines = [
            f"{HEAD}. One set: train and val are the same pictures.",
            f"train: {pictures}",
            f"val: {pictures}",
        ]
    lines += [f"nc: {len(names)}", "names:" if names else "names: {}"]
    lines += [f"  {at}: {_quote(name)}" for at, name in enumerate(names)]
    return "".join(f"{line}\n" for line in lines)


def _quote(name: str) -> str:
    text = json.dumps(name, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _format_rows(detections: Detections, width: int, height: int, with_scores: bool) -> str:
    lines = []
    for (x1, y1, x2, y2), score, class_id, _ in python_values(detections):
        cx, cy = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height
        relative = cx, cy, (x2 - x1) / width, (y2 - y1) / height
        numbers = (*relative, score) if with_scores else relative
        lines.append(f"{class_id} {' '.join(f'{value:.6f}' for value in numbers)}\n")
    return "".join(lines)
