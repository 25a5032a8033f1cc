"""Crops: each detection as a picture without boxes, in one folder per class."""

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
_UNSAFE = re.compile(r"[^\w.+ -]")  # none of: any language's letters and digits, spaces, _ . + -


class CropsSink(FolderSink):
    name = "crops"
    suffixes = ("-crops",)
    ending = ""
    pictures = "plain"
    order = 2
    manifest = ".detect-video-crops"
    content = "crops"
    options = ("names",)

    def __init__(self, path: Path, *, names: FrameNames | None = None) -> None:
        super().__init__(path)
        self._names = names or FrameNames()
        self._crops: list[Image] | None = None  # crops of the next frame that is written
        self._folders: dict[int, str] = {}  # folder names by class id

    def see(self, image: Image, detections: Detections) -> None:
        self._crops = [cut(image, box).copy() for box in detections.found().boxes.tolist()]

    def _take_crops(self, frame: Frame, detections: Detections) -> list[Image]:
        """Return a frame's crops. If ``see`` was not called, no boxes were drawn: cut them now."""
        if self._crops is None and len(detections.found()):
            self.see(frame.image, detections)
        crops, self._crops = self._crops or [], None
        return crops

    def write(self, frame: Frame, detections: Detections) -> None:
        stem, objects = _shorten(self._names.stem(frame).replace("/", "_")), detections.found()
        for number, (crop, class_id) in enumerate(
            zip(self._take_crops(frame, detections), objects.class_ids.tolist(), strict=True)
        ):
            folder = self._choose_folder(class_id, objects.name(number))
            suffix, data = encode(crop, ".jpg", ".png")
            self.add(self.free_name(f"{folder}/{stem}_{number}", suffix), data)

    def _choose_folder(self, class_id: int, name: str) -> str:
        """Return a folder for the class, unique even on a case-insensitive file system."""
        if class_id not in self._folders:
            folder = safe_folder(name) or f"class_{class_id}"
            if folder.casefold() in {other.casefold() for other in self._folders.values()}:
                folder = f"{folder}_{class_id}"
            self._folders[class_id] = folder
        return self._folders[class_id]


def cut(image: Image, box: list[float]) -> Image:
    """Return the part of a picture inside a box: whole pixels, rounded outward, at least one."""
    height, width = image.shape[:2]
    x1, y1, x2, y2 = box
    left = min(max(math.floor(x1), 0), width - 1)
    top = min(max(math.floor(y1), 0), height - 1)
    right = min(max(math.ceil(x2), left + 1), width)
    bottom = min(max(math.ceil(y2), top + 1), height)
    return image[top:bottom, left:right]


def safe_folder(name: str) -> str:
    """Turn a class name into a folder name valid on any system; "" if no character remains."""
    return _shorten(_UNSAFE.sub("_", name)).strip(" .")


def _shorten(text: str) -> str:
    while len(os.fsencode(text)) > LONGEST:
        text = text[:-1]
    return text
