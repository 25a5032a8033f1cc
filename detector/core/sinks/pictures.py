"""Annotated pictures in a folder, under the names of the source's pictures; or one in one file.

Beside YOLO's labels they lie in ``images/`` of one dataset, in formats that trainers read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import cv2

from detector.core.errors import OutputError
from detector.core.sinks._folder import FolderSink
from detector.core.sinks._naming import FrameNames, format_of_copy, picture_name
from detector.core.sinks._partial import Partial, output_errors
from detector.core.types import Detections, Frame, Image, SourceInfo

# What cv2.imencode writes. QUALITY applies to the lossy formats.
LOSSY = (".jpg", ".jpeg", ".jpe", ".webp")
ENCODED = (*LOSSY, ".png", ".bmp", ".dib", ".tif", ".tiff", ".jp2", ".ppm", ".pnm")
# What Ultralytics, FiftyOne and CVAT take for a picture of a dataset.
TRAINED_ON = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_WEBP_QUALITY, 95]


class PicturesSink(FolderSink):
    name = "pictures"
    suffixes = ("", *ENCODED)
    one_picture = ENCODED
    pictures = "bgr"
    order = 3
    manifest = ".detect-video-pictures"
    holds = "pictures"
    options = ("names",)
    dataset = "images"

    def __init__(self, path: Path, *, names: FrameNames | None = None) -> None:
        super().__init__(path)
        self._names = names or FrameNames()
        self._one: Partial | None = None  # the file, where there is no folder
        self._whole = False

    def open(self, info: SourceInfo) -> None:
        if self.path.suffix.lower() in self.one_picture:
            self._one = Partial(self.path, info.path)
            self._names.call_all(self.path.stem)
        else:
            super().open(info)
            self._names.folder = self.path

    def write(self, frame: Frame, detections: Detections) -> None:
        if self._one is not None:
            self._write_one(self._one, frame.image)
            self._names.written = frame.index, self.path
            return
        if frame.path is not None and Path(os.path.realpath(frame.path)).parent == self.target:
            raise OutputError(
                f"cannot write pictures into {self.path}: it holds {frame.path}, a picture of the "
                "source; choose another -o"
            )
        named = picture_name(frame)
        wanted = ".jpg" if named is None else format_of_copy(frame.path or named, ENCODED)
        if self.path.name == self.dataset and wanted.lower() not in TRAINED_ON:
            wanted = ".png"
        suffix, data = encode(frame.image, wanted, ".png")
        name = self.free_name(self._names.stem(frame), suffix)
        self.add(name, data)
        self._names.written = frame.index, self.path / name

    def _write_one(self, file: Partial, image: Image) -> None:
        if self._whole:
            raise OutputError(
                f"{self.path}: is one picture, but the source has more; give a folder: -o DIR/"
            )
        _, data = encode(image, self.path.suffix)
        with output_errors(self.path):
            os.ftruncate(file.fd, 0)
            with open(file.fd, "wb", closefd=False) as stream:
                stream.write(data)
        self._whole = True

    def close(self) -> Path | None:
        if self._one is None:
            return super().close()
        file, self._one = self._one, None
        if not self._whole:
            file.discard()
            return None
        file.commit()
        return self.path

    def abort(self) -> Path | None:
        if self._one is None:
            return super().abort()
        file, self._one = self._one, None
        if self._whole:
            file.release()
            return file.path
        file.discard()
        return None


def encode(image: Image, *suffixes: str) -> tuple[str, bytes]:
    """(suffix, the file's bytes): in the first of these formats that OpenCV can write."""
    for choice in suffixes:
        if choice.lower() in ENCODED:
            with suppress(cv2.error):  # e.g. WebP ends at 16383 pixels
                quality = QUALITY if choice.lower() in LOSSY else []
                done, data = cv2.imencode(choice, image, quality)
                if done:
                    return choice, data.tobytes()
    raise OutputError(
        f"OpenCV cannot encode a picture of {image.shape[1]}x{image.shape[0]} pixels; "
        "use another format, or --save video"
    )
