"""Convert pictures to the YUV picture that the encoder reads."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import av
import cv2
import numpy as np
from av.video.frame import PictureType

from detector.core.types import Image, Picture, Planes


class Canvas:
    """One YUV 4:2:0 picture for all frames (x264 copies it). BGR becomes limited-range BT.601.

    ``size``: [h, w] of the incoming pictures. ``even``: [h, w] of the encoded picture, filled by
    repeating the last column and row. ``lent``: whether the encoder may read the decoder's own
    picture if nothing was drawn on it.

    Converted planes are copied (0.04 ms at 1280x720), because the encoder pads lines and cv2 does
    not. PyAV 18's ``from_numpy_buffer`` needs no copy, but it misplaces planes unless the height is
    a multiple of 4.
    """

    def __init__(
        self, size: tuple[int, int], even: tuple[int, int], time_base: Fraction, *, lent: bool
    ) -> None:
        self._size, self._lent = size, lent
        height, width = self._even = even
        self._padded = np.empty((height, width, 3), np.uint8) if size != even else None
        self._picture = av.VideoFrame(width, height, "yuv420p")
        self._picture.time_base = time_base
        self._planes = [_view_pixels(plane) for plane in self._picture.planes]
        self.yuv: Image | None = None  # Y, then U, then V, without padding, as cv2 writes them

    def fill(self, picture: Picture) -> Any:
        """Convert u8 BGR [h, w, 3] or planes to a picture for the encoder."""
        if not isinstance(picture, Planes):
            self._convert(picture)
            return self._picture
        if picture.picture is not None and (picture.y.flags.writeable or self._can_lend(picture)):
            return picture.picture
        for plane, given in zip(self._planes, (picture.y, picture.u, picture.v), strict=True):
            np.copyto(plane, given)
        return self._picture

    def _can_lend(self, planes: Planes) -> bool:
        """Return whether the encoder can read the decoder's picture, and prepare it if so."""
        picture = planes.picture
        kind = picture.format.name, picture.height, picture.width
        if not self._lent or kind != ("yuv420p", *self._even):
            return False
        # Otherwise the encoder would use the type (I, P, B) that the picture had in the source.
        picture.pict_type = PictureType.NONE
        return True

    def _convert(self, image: Image) -> None:
        image = fit_inside(image, *self._size)
        if self._padded is not None:
            right, bottom = self._even[1] - self._size[1], self._even[0] - self._size[0]
            image = cv2.copyMakeBorder(
                image, 0, bottom, 0, right, cv2.BORDER_REPLICATE, dst=self._padded
            )
        height, width = self._even
        if self.yuv is None:
            self.yuv = np.empty((height * 3 // 2, width), np.uint8)
        cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420, dst=self.yuv)
        rows, quarter = self.yuv[height:].reshape(-1), height * width // 4
        for plane, converted in zip(
            self._planes, (self.yuv[:height], rows[:quarter], rows[quarter:]), strict=True
        ):
            np.copyto(plane, converted.reshape(plane.shape))


def _view_pixels(plane: Any) -> Image:
    """Return a writable view [h, w] of a plane, without the padding at the end of its lines."""
    return np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]


def fit_inside(image: Image, height: int, width: int) -> Image:
    """Scale a picture to fit in [height, width], centred on black, unless it has that size."""
    if image.shape[:2] == (height, width):
        return image
    scale = min(height / image.shape[0], width / image.shape[1])
    inner_height = max(1, round(image.shape[0] * scale))
    inner_width = max(1, round(image.shape[1] * scale))
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    fitted = np.zeros((height, width, 3), np.uint8)
    inner = fitted[top : top + inner_height, left : left + inner_width]
    inner[:] = cv2.resize(image, (inner_width, inner_height), interpolation=cv2.INTER_LINEAR)
    return fitted
