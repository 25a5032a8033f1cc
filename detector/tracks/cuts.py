"""Detect scene cuts by comparing thumbnails. After a cut, all objects are new."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detector.core.types import Frame, Planes

SIDE = 32  # the thumbnail has at least this many pixels along each side
SHADES = 16  # bins of the thumbnail's histogram
# A cut changes both the pixels and the histogram. Panning changes only the pixels; switching a
# light changes mostly the histogram.
LEAST_CHANGE = 28.0  # mean difference of pixels, 0 to 255
LEAST_SHIFT = 0.25  # share of pixels that change their shade


class Cuts:
    def __init__(self) -> None:
        self._last: NDArray[np.int16] | None = None

    def is_cut(self, frame: Frame) -> bool:
        """Return whether there is a cut just before this frame; store the result in the frame."""
        if frame.cut is None:
            frame.cut = self._compare(frame)
        return frame.cut

    def _compare(self, frame: Frame) -> bool:
        last, self._last = self._last, _thumbnail(frame)
        if last is None:
            return False
        if last.shape != self._last.shape:
            return True
        if np.abs(last - self._last).mean() < LEAST_CHANGE:
            return False
        moved = np.abs(_count_shades(last) - _count_shades(self._last)).sum() / (2 * last.size)
        return bool(moved >= LEAST_SHIFT)


def _thumbnail(frame: Frame) -> NDArray[np.int16]:
    """Return the brightness of some pixels, 0 to 255, without copying the picture."""
    height, width = frame.size
    down, right = max(1, height // SIDE), max(1, width // SIDE)
    picture = frame.picture
    # In BGR, green approximates the brightness.
    plane = picture.y if isinstance(picture, Planes) else picture[..., 1]
    return plane[down // 2 :: down, right // 2 :: right].astype(np.int16)


def _count_shades(thumbnail: NDArray[np.int16]) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.bincount(thumbnail.ravel() * SHADES // 256, minlength=SHADES)
    return counts
