"""Pictures from the caller's iterable or cv2.VideoCapture. We copy each: buffers may be reused."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

from detector.core.api.pictures import as_image
from detector.core.errors import SourceError
from detector.core.run.reading import SourceReading
from detector.core.sources.base import SteppingSource
from detector.core.types import Frame, Image, SourceInfo


def take_given(sources: Any, reading: SourceReading) -> list[GivenSource]:
    """Return one source if ``sources`` are pictures, or an empty list if they are names."""
    if isinstance(sources, (list, tuple)):
        given = bool(sources) and not isinstance(sources[0], (str, int, os.PathLike))
    else:  # an array of three dimensions is one picture
        given = hasattr(sources, "__iter__") and getattr(sources, "ndim", 4) == 4
        given = hasattr(sources, "isOpened") or (given and not isinstance(sources, str))
    return [GivenSource(sources, reading)] if given else []


class GivenSource(SteppingSource):
    """The pictures as a video, which has the capture's frame rate, or 25 frames a second."""

    def __init__(self, given: Any, reading: SourceReading) -> None:
        super().__init__(reading.stride, reading.frames)
        is_capture = hasattr(given, "isOpened")
        pictures = None if is_capture else iter(given)
        self._take: Any = lambda: given.read()[1] if pictures is None else next(pictures, None)
        if not self.hold_first():
            raise SourceError("stream(): the source has no picture; give at least one")
        rate = given.get(5) if is_capture else 0  # CAP_PROP_FPS: 0, -1 or NaN if unknown
        fps = Fraction(rate if 0 < rate < 1e6 else 25).limit_denominator(1001)
        height, width, _ = as_image(self._picture).shape
        self.info = SourceInfo(type(given).__name__, "video", width, height, fps, 1 / fps)

    def grab(self) -> bool:
        self._picture: Any = self._take()
        return self._picture is not None

    def retrieve(self, index: int, into: Image | None) -> Frame:
        return Frame(index, index, float(index / self.info.fps), as_image(self._picture).copy())
