"""Each detection as its own picture, cut out before boxes are drawn: one folder per class."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from detector.core.sinks._folder import FolderSink
from detector.core.sinks._naming import FrameNames
from detector.core.sinks.pictures import encode
from detector.core.types import Detections, Frame, Image

LONGEST = 200  # bytes of a name; file systems allow 255
_UNSAFE = re.compile(r"[^\w.+ -]")  # letters and digits of all languages stay


class CropsSink(FolderSink):
    name = "crops"
    suffixes = ("-crops",)
    ending = ""
    pictures = "plain"
    order = 2
    manifest = ".detect-video-crops"
    holds = "crops"
    options = ("names",)

    def __init__(self, path: Path, *, names: FrameNames | None = None) -> None:
        super().__init__(path)
        self._names = names or FrameNames()
        self._cut: list[Image] | None = None  # crops of the frame that ``write`` gets next
        self._folders: dict[int, str] = {}  # by class id

    def see(self, image: Image, detections: Detections) -> None:
        self._cut = [cut(image, box).copy() for box in detections.found().boxes.tolist()]

    def _take(self, frame: Frame, detections: Detections) -> list[Image]:
        """Return a frame's crops. If no sink draws, the frame itself is the plain picture."""
        if self._cut is None and len(detections.found()):
            self.see(frame.image, detections)
        taken, self._cut = self._cut or [], None
        return taken

    def write(self, frame: Frame, detections: Detections) -> None:
        stem, found = _shorten(self._names.stem(frame).replace("/", "_")), detections.found()
        for number, (crop, class_id) in enumerate(
            zip(self._take(frame, detections), found.class_ids.tolist(), strict=True)
        ):
            folder = self._folder_of(class_id, found.name(number))
            suffix, data = encode(crop, ".jpg", ".png")
            self.add(self.free_name(f"{folder}/{stem}_{number}", suffix), data)

    def _folder_of(self, class_id: int, name: str) -> str:
        """Return the class's own folder, distinct even on a case-insensitive file system."""
        if class_id not in self._folders:
            folder = safe_folder(name) or f"class_{class_id}"
            if folder.casefold() in {other.casefold() for other in self._folders.values()}:
                folder = f"{folder}_{class_id}"
            self._folders[class_id] = folder
        return self._folders[class_id]


def cut(image: Image, box: list[float]) -> Image:
    """Return the part of a picture that a box touches: rounded outward, clipped, not empty."""
    height, width = image.shape[:2]
    x1, y1, x2, y2 = box
    left = min(max(math.floor(x1), 0), width - 1)
    top = min(max(math.floor(y1), 0), height - 1)
    right = min(max(math.ceil(x2), left + 1), width)
    bottom = min(max(math.ceil(y2), top + 1), height)
    return image[top:bottom, left:right]


def safe_folder(name: str) -> str:
    """Return a class name as a folder name for any system; "" if nothing of it remains."""
    return _shorten(_UNSAFE.sub("_", name)).strip(" .")


def _shorten(text: str) -> str:
    while len(os.fsencode(text)) > LONGEST:
        text = text[:-1]
    return text
