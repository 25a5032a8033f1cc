"""cv2, kept from writing to the user's terminal: damage is counted and said by us, once."""

from __future__ import annotations

import os

import numpy as np

from detector.types import Image

# Read once, when the first VideoCapture is made: -8 is AV_LOG_QUIET. What the user sets stays.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
import cv2

__all__ = ["cv2", "fits", "rotate"]

if "OPENCV_LOG_LEVEL" not in os.environ:
    # By call, not by the variable: another room may have imported cv2 before us.
    if hasattr(cv2, "setLogLevel"):  # OpenCV 4
        cv2.setLogLevel(0)
    else:
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

# From the container's angle (as ffprobe and PyAV state it: counter-clockwise) to cv2's code.
_ROTATE = {90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_CLOCKWISE}


def rotate(image: Image, degrees: int, into: Image | None) -> Image:
    """``image`` turned counter-clockwise by 90, 180 or 270 degrees; ``into`` itself where one that fits is given."""
    turned: Image = cv2.rotate(image, _ROTATE[degrees], dst=into)
    return turned


def fits(into: Image | None, width: int, height: int) -> bool:
    """True when ``into`` can take a BGR picture of this size, in place."""
    return (
        into is not None
        and into.shape == (height, width, 3)
        and into.dtype == np.uint8
        and into.flags.c_contiguous
        and into.flags.writeable
    )
