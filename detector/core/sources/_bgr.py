"""Convert PyAV's decoded pictures to BGR, pixel for pixel as cv2 does."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.errors.machine import ARM64
from detector.core.stages.preprocess import yuv_to_rgb
from detector.core.types import Colours, Image

# Numbers of ITU-T H.273. Like cv2, we convert HDR and wide gamuts, which look pale, to BT.709.
BT709, UNSPECIFIED = 1, 2
HDR_TRANSFERS = (16, 18)  # PQ and HLG
WIDE_PRIMARIES = (8, 9, 10, 11, 12, 22)  # film, BT.2020, XYZ, both P3, EBU 3213
# The numbers that swscale accepts. We replace other matrices as ffmpeg does: the constant-luminance
# variant of BT.2020 by BT.2020, and the rest by BT.601.
MATRICES = frozenset((0, 1, 2, 4, 5, 6, 7, 9))
TRANSFERS = frozenset((1, 2, 4, 5, 6, 7, 8, *range(11, 19)))
PRIMARIES = frozenset((1, 2, *range(4, 13), 22))
BT601, BT2020, BT2020_CONSTANT = 5, 9, 10
FORMATS = ("yuv420p", "yuvj420p")
_DEEP_GREY = re.compile(r"(?:gray|ya)f?(?:9|\d\d)(?:le|be)")
LIMITED, FULL = 1, 2  # FFmpeg's AVCOL_RANGE; limited: 16 is black, 235 white
# Matrix number -> weights of red and blue in luma. As in swscale, 2 (unspecified) means BT.601.
LUMA = {1: (0.2126, 0.0722), 2: (0.299, 0.114), 5: (0.299, 0.114), 6: (0.299, 0.114)}


def to_bgr(reformatter: Any, picture: Any, width: int, height: int) -> Image:
    """Return [height, width, 3] u8, not rotated; may be a view. On ARM64 we convert most pictures
    ourselves, because swscale rounds differently there: 76% of values are off, by up to 2
    levels."""
    if ARM64 and (picture.width, picture.height) == (width, height) and is_plain(picture):
        return _to_bgr_as_x86([pixels_of(plane) for plane in picture.planes], colours_of(picture))
    nearest = nearest_matrix(picture)
    # Like cv2, use bicubic interpolation, which also enlarges the chroma planes.
    bgr = reformatter.reformat(
        picture,
        width=width,
        height=height,
        format="bgr24",
        interpolation="BICUBIC",
        src_colorspace=nearest,
        dst_colorspace=nearest,
        **_choose_dst_colours(picture),
    )
    return lines_of(bgr.planes[0])[:, : width * 3].reshape(height, width, 3)


def is_deep_grey(picture: Any) -> bool:
    """Return whether a picture is grey with more than 8 bits, which ``_grey`` converts."""
    return _DEEP_GREY.fullmatch(picture.format.name) is not None


def is_plain(picture: Any) -> bool:
    """Return whether ``_to_bgr_as_x86`` can convert a picture."""
    return (
        picture.format.name in FORMATS
        and picture.width % 2 == picture.height % 2 == 0
        and picture.colorspace in LUMA
        and not picture.interlaced_frame
        and not _choose_dst_colours(picture)
        and all(plane.line_size >= plane.width for plane in picture.planes)
    )


def _to_bgr_as_x86(planes: list[NDArray[np.uint8]], colours: Colours) -> Image:
    y, u, v = planes
    bright, red, green_u, green_v, blue = _compute_products(colours)
    luma, size = cv2.LUT(y, bright), y.shape[::-1]
    chroma = cv2.LUT(u, blue), cv2.add(cv2.LUT(u, green_u), cv2.LUT(v, green_v)), cv2.LUT(v, red)
    large = (cv2.resize(plane, size, interpolation=cv2.INTER_NEAREST) for plane in chroma)
    bgr: Image = cv2.merge([cv2.add(luma, plane, dtype=cv2.CV_8U) for plane in large])
    return bgr


@lru_cache(maxsize=16)
def _compute_products(colours: Colours) -> tuple[NDArray[np.int16], ...]:
    """Return what each level adds: of Y to all channels, V to red, U and V to green, U to blue."""
    factors = np.rint(yuv_to_rgb(colours).astype(float) * 8192).astype(int)
    levels, black = np.arange(256), 0 if colours.full_range else 16
    pairs = (factors[0, 0], black), *((factors[at], 128) for at in ((0, 2), (1, 1), (1, 2), (2, 1)))
    return tuple(((factor * (levels - zero)) >> 13).astype(np.int16) for factor, zero in pairs)


def colours_of(picture: Any) -> Colours:
    full = picture.color_range == FULL or picture.format.name == "yuvj420p"
    return Colours(
        int(picture.colorspace),
        int(picture.color_primaries),
        int(picture.color_trc),
        full,
        LUMA[int(picture.colorspace)],
    )


def lines_of(plane: Any, kind: str = "u1") -> NDArray[Any]:
    """Return a view [h, n] of a plane's lines with their padding, the top line first. If pictures
    are stored bottom-up, as in uncompressed AVI, the line size is negative, and the plane's buffer
    starts with the last line."""
    lines = np.frombuffer(plane, kind).reshape(plane.height, -1)
    return lines[::-1] if plane.line_size < 0 else lines


def pixels_of(plane: Any) -> NDArray[np.uint8]:
    """Return a view [h, w] of a plane, without the padding at the end of its lines."""
    return lines_of(plane)[:, : plane.width]


def nearest_matrix(picture: Any) -> int | None:
    """Return a matrix to replace the picture's; None if swscale accepts the picture's own."""
    if picture.colorspace in MATRICES or picture.format.is_rgb:
        return None
    return BT2020 if picture.colorspace == BT2020_CONSTANT else BT601


def _choose_dst_colours(picture: Any) -> dict[str, int]:
    """Return ``reformat``'s options for pictures in HDR or with a wide gamut."""
    transfer, primaries = int(picture.color_trc), int(picture.color_primaries)
    hdr, wide = transfer in HDR_TRANSFERS, primaries in WIDE_PRIMARIES
    if not (hdr or wide):
        return {}
    # Numbers that swscale does not accept would make it fail or crash.
    return {
        "dst_color_trc": BT709 if hdr else transfer if transfer in TRANSFERS else UNSPECIFIED,
        "dst_color_primaries": BT709
        if wide
        else primaries
        if primaries in PRIMARIES
        else UNSPECIFIED,
    }
