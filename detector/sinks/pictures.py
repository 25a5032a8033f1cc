"""Annotated pictures in a folder, under the names of the source's pictures; or one in one file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePath

import cv2

from detector.errors import OutputError
from detector.sinks._folder import FolderSink, picture_name
from detector.sinks._partial import Partial, output_errors
from detector.types import Detections, Frame, Image, SourceInfo

# What cv2.imencode writes. QUALITY applies to the lossy formats.
LOSSY = (".jpg", ".jpeg", ".jpe", ".webp")
ENCODED = (*LOSSY, ".png", ".bmp", ".dib", ".tif", ".tiff", ".jp2", ".ppm", ".pnm")
QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_WEBP_QUALITY, 95]


class PicturesSink(FolderSink):
    name = "pictures"
    suffixes = ("", *ENCODED)
    one_picture = ENCODED
    pictures = "bgr"
    default_for = ("pictures",)
    order = 3
    manifest = ".detect-video-pictures"
    holds = "pictures"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._one: Partial | None = None  # the file, where there is no folder
        self._whole = False

    def open(self, info: SourceInfo) -> None:
        if self.path.suffix.lower() in self.one_picture:
            self._one = Partial(self.path, info.path)
        else:
            super().open(info)

    def write(self, frame: Frame, detections: Detections) -> None:
        if self._one is not None:
            self._write_one(self._one, frame.image)
            return
        if frame.path is not None and Path(os.path.realpath(frame.path)).parent == self.target:
            raise OutputError(
                f"cannot write pictures into {self.path}: it holds {frame.path}, a picture of the "
                "source; choose another -o"
            )
        wanted = picture_name(frame) or PurePath(f"frame_{frame.index:06d}.jpg")
        suffix, data = encode(frame.image, wanted.suffix, ".png")
        self.add(self.free_name(str(wanted.with_suffix("")), suffix), data)

    def _write_one(self, file: Partial, image: Image) -> None:
        if self._whole:
            raise OutputError(
                f"{self.path}: is one picture, and there are more; give a folder: -o DIR/"
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
