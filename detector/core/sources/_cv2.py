"""Import cv2 and silence its log, since we count damage ourselves and report it once."""

from __future__ import annotations

import os

import numpy as np

from detector.core.types import Image

# Each new VideoCapture reads this variable. -8 is AV_LOG_QUIET. A value set by the user stays.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
# V4L2's timeout for a webcam's picture, in seconds. cv2 reads it on import. The default is ten
# seconds, during which a run with a silent webcam could not be stopped.
os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "1")
import cv2

__all__ = ["cv2", "fits", "upright"]

if "OPENCV_LOG_LEVEL" not in os.environ:
    # cv2 reads the variable only on import, and may already be imported, so call its function.
    if hasattr(cv2, "setLogLevel"):  # OpenCV 4
        cv2.setLogLevel(0)
    else:
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

# Maps the container's angle (counter-clockwise, as in ffprobe and PyAV) to cv2's code.
_ROTATE = {90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_CLOCKWISE}
_UPSIDE_DOWN, _LEFT_RIGHT, _BOTH = 0, 1, -1  # cv2.flip's codes


def upright(image: Image, degrees: int, mirrored: bool, into: Image | None) -> Image:
    """Flip vertically if ``mirrored``, then rotate counter-clockwise by ``degrees``."""
    if not mirrored:
        rotated: Image = cv2.rotate(image, _ROTATE[degrees], dst=into)
        return rotated
    turned: Image
    if degrees % 180 == 0:
        turned = cv2.flip(image, _LEFT_RIGHT if degrees else _UPSIDE_DOWN, dst=into)
        return turned
    turned = cv2.transpose(image, dst=into)
    return turned if degrees == 270 else cv2.flip(turned, _BOTH, dst=turned)


def fits(into: Image | None, width: int, height: int) -> bool:
    """Return whether a BGR picture of this size can be stored in ``into``."""
    return (
        into is not None
        and into.shape == (height, width, 3)
        and into.dtype == np.uint8
        and into.flags.c_contiguous
        and into.flags.writeable
    )
