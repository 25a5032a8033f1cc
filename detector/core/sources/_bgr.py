"""PyAV's decoded pictures as BGR, pixel for pixel as cv2 makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from av.video.reformatter import VideoReformatter

from detector.core.types import Image

# As ITU-T H.273 numbers them. What cv2's conversion brings to BT.709; kept as they are, colours
# look washed out.
BT709, HDR_TRANSFERS, WIDE_PRIMARIES = 1, (16, 18), (9, 11, 12)  # PQ and HLG; BT.2020 and both P3


def to_bgr(reformatter: VideoReformatter, picture: Any, width: int, height: int) -> Image:
    """[height, width, 3] u8, as stored: not turned. A view of the reformatter's result."""
    # Bicubic also for the chroma planes: then the pixels are cv2's own.
    bgr = reformatter.reformat(
        picture,
        width=width,
        height=height,
        format="bgr24",
        interpolation="BICUBIC",
        **_colours_of(picture),
    )
    plane: Any = bgr.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(height, plane.line_size)
    return rows[:, : width * 3].reshape(height, width, 3)


def _colours_of(picture: Any) -> dict[str, int]:
    """Transfer and primaries that ``reformat`` is to convert to; nothing for ordinary pictures."""
    hdr, wide = picture.color_trc in HDR_TRANSFERS, picture.color_primaries in WIDE_PRIMARIES
    if not (hdr or wide):
        return {}
    return {
        "dst_color_trc": BT709 if hdr else int(picture.color_trc),
        "dst_color_primaries": BT709 if wide else int(picture.color_primaries),
    }
