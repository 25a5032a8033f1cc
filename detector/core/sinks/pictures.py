"""Write annotated pictures: one file, or a folder of files named like the source's pictures."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import cv2

from detector.core.errors import OutputError
from detector.core.sinks._folder import FolderSink
from detector.core.sinks._naming import FrameNames, choose_copy_suffix, make_picture_name
from detector.core.sinks._partial import Partial, output_errors
from detector.core.types import Detections, Frame, Image, SourceInfo

if TYPE_CHECKING:
    from detector.core.timeline.crew import Crew, Pending

# Formats that cv2.imencode writes. QUALITY applies to lossy formats.
LOSSY = (".jpg", ".jpeg", ".jpe", ".webp")
ENCODED = (*LOSSY, ".png", ".bmp", ".dib", ".tif", ".tiff", ".jp2", ".ppm", ".pnm")
# Formats that Ultralytics, FiftyOne and CVAT accept in a dataset.
DATASET_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
# Limits of formats for the longer side, in pixels.
LONGEST_SIDES = {".webp": 16383, **dict.fromkeys((".jpg", ".jpeg", ".jpe"), 65500)}
AHEAD_BYTES = 256 << 20  # limit for pictures that wait or are being encoded
QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_WEBP_QUALITY, 95]


class PicturesSink(FolderSink):
    name = "pictures"
    suffixes = ("", *ENCODED)
    one_picture = ENCODED
    pictures = "bgr"
    order = 3
    manifest = ".detect-video-pictures"
    content = "pictures"
    options = ("names", "at_once")
    dataset = "images"

    def __init__(self, path: Path, *, names: FrameNames | None = None, at_once: int = 1) -> None:
        """``at_once``: how many pictures are encoded concurrently."""
        super().__init__(path)
        self._names = names or FrameNames()
        self._at_once = at_once
        self._crew: Crew | None = None
        # Pictures being encoded, in order: name, bytes before encoding, encoded picture.
        self._pending: deque[tuple[str, int, Pending[tuple[str, bytes]]]] = deque()
        self._one: Partial | None = None  # the file of a single picture
        self._written_one = False

    def open(self, info: SourceInfo) -> None:
        if self.path.suffix.lower() in self.one_picture:
            self._one = Partial(self.path, info.path)
            self._names.only_stem = self.path.stem
        else:
            super().open(info)
            self._names.folder = self.path
            if self._at_once > 1:
                from detector.core.timeline.crew import Crew

                self._crew = Crew("encoder", self._at_once)

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
        original = make_picture_name(frame)
        suffix = ".jpg" if original is None else choose_copy_suffix(frame.path or original, ENCODED)
        image = frame.image
        is_refused = self.path.name == self.dataset and suffix.lower() not in DATASET_SUFFIXES
        if is_refused or not _fits_format(suffix, image):
            suffix = ".png"
        name = self.free_name(self._names.stem(frame), suffix)
        self._names.written = frame.index, self.path / name
        work = partial(encode, image, suffix)
        if self._crew is None or frame.buffer is not None:  # the next frame may reuse the buffer
            self.add(name, work()[1])
            return
        self._pending.append((name, image.nbytes, self._crew.submit(work)))
        self._write_encoded(AHEAD_BYTES)

    def _write_encoded(self, most: int) -> None:
        """Write encoded pictures in order; wait while more than ``most`` bytes are pending."""
        pending = sum(size for _, size, _ in self._pending)
        while self._pending and (pending > most or self._pending[0][2].is_done()):
            name, size, encoded = self._pending.popleft()
            pending -= size
            self.add(name, encoded.result()[1])

    def _close_crew(self) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def _write_one(self, file: Partial, image: Image) -> None:
        if self._written_one:
            raise OutputError(
                f"{self.path}: is one picture, but the source has more; give a folder: -o DIR/"
            )
        _, data = encode(image, self.path.suffix)
        with output_errors(self.path):
            os.ftruncate(file.fd, 0)
            with open(file.fd, "wb", closefd=False) as stream:
                stream.write(data)
        self._written_one = True

    def close(self) -> Path | None:
        if self._one is None:
            try:
                self._write_encoded(0)
            finally:
                self._close_crew()
            return super().close()
        file, self._one = self._one, None
        if not self._written_one:
            file.discard()
            return None
        file.commit()
        return self.path

    def abort(self) -> Path | None:
        if self._one is None:
            with suppress(OutputError):
                self._write_encoded(0)
            self._close_crew()
            return super().abort()
        file, self._one = self._one, None
        if self._written_one:
            file.release()
            return file.path
        file.discard()
        return None


def _fits_format(suffix: str, image: Image) -> bool:
    longest = LONGEST_SIDES.get(suffix.lower(), 1 << 30)
    return suffix.lower() in ENCODED and max(image.shape[:2]) <= longest


def encode(image: Image, *suffixes: str) -> tuple[str, bytes]:
    """Encode a picture in the first format that OpenCV can write. Return (its suffix, bytes)."""
    for suffix in suffixes:
        if suffix.lower() in ENCODED:
            with suppress(cv2.error):  # WebP, for example, allows at most 16383 pixels a side
                quality = QUALITY if suffix.lower() in LOSSY else []
                done, data = cv2.imencode(suffix, image, quality)
                if done:
                    return suffix, data.tobytes()
    raise OutputError(
        f"OpenCV cannot encode a picture of {image.shape[1]}x{image.shape[0]} pixels; "
        "use another format, or --save video"
    )
