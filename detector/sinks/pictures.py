"""Annotated pictures in a folder, under the names of the source's pictures."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import cv2

from detector.errors import OutputError
from detector.sinks._folder import FolderSink
from detector.types import Detections, Frame, Image

# What cv2.imencode writes. QUALITY applies to the lossy formats.
LOSSY = (".jpg", ".jpeg", ".jpe", ".webp")
ENCODED = (*LOSSY, ".png", ".bmp", ".dib", ".tif", ".tiff", ".jp2", ".ppm", ".pnm")
QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_WEBP_QUALITY, 95]


class PicturesSink(FolderSink):
    name = "pictures"
    suffixes = ("",)
    pictures = "bgr"
    default_for = ("pictures",)
    order = 3
    manifest = ".detect-video-pictures"
    holds = "pictures"

    def write(self, frame: Frame, detections: Detections) -> None:
        if frame.path is not None and Path(os.path.realpath(frame.path)).parent == self.target:
            raise OutputError(
                f"cannot write pictures into {self.path}: it holds {frame.path}, a picture of the "
                "source; choose another -o"
            )
        wanted = Path(frame.path).name if frame.path is not None else f"frame_{frame.index:06d}.jpg"
        suffix, data = _encode(frame.image, Path(wanted).suffix)
        self.add(self.free_name(Path(wanted).stem, suffix), data)


def _encode(image: Image, suffix: str) -> tuple[str, bytes]:
    """(suffix, the file's bytes): in the source's format if OpenCV can write it, else PNG."""
    for choice in (suffix, ".png"):
        if choice.lower() in ENCODED:
            with suppress(cv2.error):  # e.g. WebP ends at 16383 pixels
                quality = QUALITY if choice.lower() in LOSSY else []
                done, data = cv2.imencode(choice, image, quality)
                if done:
                    return choice, data.tobytes()
    raise OutputError(
        f"OpenCV cannot encode a picture of {image.shape[1]}x{image.shape[0]} pixels; "
        "use --save video"
    )
