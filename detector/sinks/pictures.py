"""Annotated pictures in a folder, under the names of their sources."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import cv2

from detector.errors import OutputError
from detector.sinks.base import FolderSink
from detector.types import Detections, Frame, Image

SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".png",
    ".webp",
    ".bmp",
    ".dib",
    ".tif",
    ".tiff",
    ".jp2",
    ".ppm",
    ".pnm",
)
QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_WEBP_QUALITY, 95]


class PicturesSink(FolderSink):
    name = "pictures"
    manifest = ".detect-video-pictures"
    holds = "pictures"

    def write(self, frame: Frame, detections: Detections) -> None:
        if frame.path is not None and Path(os.path.realpath(frame.path)).parent == self.target:
            raise OutputError(
                f"cannot write pictures into {self.path}: {frame.path} is there; choose another -o"
            )
        wanted = Path(frame.path).name if frame.path is not None else f"frame_{frame.index:06d}.jpg"
        suffix, data = _encode(frame.image, Path(wanted).suffix)
        self.add(self.free_name(Path(wanted).stem, suffix), data)


def _encode(image: Image, suffix: str) -> tuple[str, bytes]:
    """The file's content in the source's own format where OpenCV writes it, else as PNG; suffix and bytes."""
    for choice in (suffix, ".png"):
        if choice.lower() in SUFFIXES:
            with suppress(cv2.error):  # e.g. WebP ends at 16383 pixels
                done, data = cv2.imencode(
                    choice, image, QUALITY if choice.lower() in SUFFIXES[:5] else []
                )
                if done:
                    return choice, data.tobytes()
    raise OutputError(
        f"OpenCV cannot encode a picture of {image.shape[1]}x{image.shape[0]} pixels; use --save video"
    )
