"""Write a source picture into a request's slot, in the geometry that the model's family needs."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np
from numpy import uint8
from numpy.typing import NDArray

from detector.core.errors.machine import ARM64
from detector.core.types import (
    GEOMETRIES,
    AnyPicture,
    Colours,
    Image,
    Letterbox,
    Planes,
    Reduced,
    size_of,
)

# ``input_of_shape`` may exceed the model's own area by 5%. Inference time grows with the area, so
# no shape should cost noticeably more than another. With a model of 416x256, a picture of 4:3 gets
# 384x288, its exact shape (3.8% more area); 16:9 gets 416x256, since 448x256 has 7.7% more.
MOST_AREA = (21, 20)
# Without this limit, a picture of 100:1 would get an input one cell high, too low for an object.
LEAST_CELLS = 3
# In pixels. If scale x height misses the new height by over 1e-7, OpenCV 5.0 bypasses KleidiCV.
NUDGES = (2e-7, -2e-7, 3e-7, -3e-7)


def letterbox(
    picture: AnyPicture,
    slot: NDArray[uint8],
    *,
    geometry: str,
    pad_value: int | tuple[int, int, int] = 114,
    of_picture: bool = False,
) -> Letterbox:
    """Resize ``picture`` (u8 BGR [h, w, 3], planes of YUV, or reduced) and pad it to fill ``slot``
    (u8 RGB [H, W, 3]).

    ``geometry``:
      "centre"             scale = min(W/w, H/h), size round(w*scale) x round(h*scale), padding
                           split evenly, the odd pixel right and below (YOLOv5, v7, v8...)
      "top-left"           the same size, at the top left (mmdet)
      "top-left-truncate"  the same scale, size int(w*scale) x int(h*scale), at the top left (YOLOX)
      "stretch"            each axis scaled separately, no padding (darknet)
    Interpolation is linear. Returns the picture's position. ``of_picture``: return the mapping for
    a network whose boxes are computed as if the picture filled the input.
    """
    source_height, source_width = size_of(picture)
    height, width = slot.shape[:2]
    fit = place(source_width, source_height, width, height, geometry)
    left, top, inner_width, inner_height, letter = fit
    inner = slot[top : top + inner_height, left : left + inner_width]
    if isinstance(picture, Planes):
        _planes_to_rgb(picture, inner)
    else:
        _bgr_to_rgb(picture.pixels if isinstance(picture, Reduced) else picture, inner)
    slot[:top] = pad_value
    slot[top + inner_height :] = pad_value
    slot[top : top + inner_height, :left] = pad_value
    slot[top : top + inner_height, left + inner_width :] = pad_value
    if of_picture:
        return place(source_width, source_height, width, height, "stretch")[-1]
    return letter


def _bgr_to_rgb(image: Image, inner: Image) -> None:
    height, width = inner.shape[:2]
    if image.shape[:2] != (height, width):
        image = resize(image, (width, height), inner)
    # The channels are swapped after the resize: on the smaller picture, and in place.
    cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=inner)


def resize(image: Image, size: tuple[int, int], out: Image | None = None) -> Image:
    """Scale ``image`` ([h, w] or [h, w, 3]) linearly to ``size`` (width, height), into ``out`` if
    given. The pixels are the same on ARM64 as on x86.

    On ARM64 cv2 uses KleidiCV and carotene, which round differently: 18% of the pixels differ by
    one level. They leave some cases to OpenCV's own code: more than four channels, and two or three
    channels with a scale that does not quite fit. To halve the size, x86 takes the mean of four
    pixels, and so does carotene for a single channel.
    """
    if not ARM64:
        scaled = cv2.resize(image, size, dst=out, interpolation=cv2.INTER_LINEAR)
    elif image.shape[:2] == (2 * size[1], 2 * size[0]):
        scaled = cv2.merge([cv2.resize(channel, size) for channel in cv2.split(image)])
    else:
        several = cv2.merge([image, image]) if image.ndim == 2 else image
        scaled = _resize_in_opencv(several, size, _find_nudge(several.shape, size))
        scaled = cv2.extractChannel(scaled, 0) if image.ndim == 2 else scaled
    return np.asarray(scaled, uint8)


def _resize_in_opencv(image: Image, size: tuple[int, int], nudge: float) -> Image:
    """Make cv2 scale with OpenCV's own code. For this, use a scale that misses the height by
    ``nudge`` pixels; if ``nudge`` is 0, add copies of the picture as more channels."""
    height, width, channels = image.shape
    if nudge:
        scaled = cv2.resize(image, None, fx=size[0] / width, fy=(size[1] + nudge) / height)
    else:
        scaled = cv2.merge(cv2.split(cv2.resize(cv2.merge([image] * 3), size))[:channels])
    return np.asarray(scaled, uint8)


@lru_cache(maxsize=64)
def _find_nudge(shape: tuple[int, ...], size: tuple[int, int]) -> float:
    """Return a nudge with which ``_resize_in_opencv`` gives the same pixels as with 0, in a third
    of the time. Return 0 if none is found.

    A nudge may change the weights of a row by 1/2048. We check with a picture of noise, in which
    that changes 1 pixel in 16.
    """
    if size[0] < 256:
        return 0
    noise = np.random.default_rng(0).integers(0, 256, shape, uint8)
    exact = _resize_in_opencv(noise, size, 0)
    fitting = (by for by in NUDGES if (_resize_in_opencv(noise, size, by) == exact).all())
    return next(fitting, 0)


def _planes_to_rgb(planes: Planes, inner: Image) -> None:
    """Resize the planes separately, and convert only the result to RGB. We treat colours as sited
    in the middle of their four pixels; most streams site them half a source pixel further left,
    which is less than a pixel of the network."""
    height, width = inner.shape[:2]
    small = [
        plane if plane.shape == (height, width) else resize(plane, (width, height))
        for plane in (planes.y, planes.u, planes.v)
    ]
    cv2.merge(small, dst=inner)
    cv2.transform(inner, _as_swscale(planes.colours), dst=inner)


@lru_cache(maxsize=16)
def _as_swscale(colours: Colours) -> NDArray[np.float32]:
    """Return the matrix of ``yuv_to_rgb``, darkened by half a level per product (red and blue have
    two, green three): swscale rounds products down. One level can move a score over a threshold."""
    matrix = yuv_to_rgb(colours).copy()
    matrix[:, 3] -= (1.0, 1.5, 1.0)
    return matrix


@lru_cache(maxsize=16)
def yuv_to_rgb(colours: Colours) -> NDArray[np.float32]:
    """Return the matrix [3, 4] that converts (Y, U, V, 1) to (R, G, B). R, G, B: 0 to 255."""
    red, blue = colours.luma
    green = 1 - red - blue
    black, bright, deep = (0, 1.0, 1.0) if colours.full_range else (16, 255 / 219, 255 / 224)
    matrix = np.array(
        [
            [bright, 0, 2 * (1 - red) * deep],
            [bright, -2 * blue * (1 - blue) / green * deep, -2 * red * (1 - red) / green * deep],
            [bright, 2 * (1 - blue) * deep, 0],
        ]
    )
    offset = -matrix @ (black, 128, 128)
    return np.column_stack([matrix, offset]).astype(np.float32)


def smallest_input(
    longest: int, stride: int, source_width: int, source_height: int
) -> tuple[int, int]:
    """Return (height, width), multiples of ``stride``, of the smallest input for a picture whose
    longest side is scaled to ``longest``. For "centre" geometry, where padding only costs time."""
    scale = longest / max(source_width, source_height)
    width, height = max(1, round(source_width * scale)), max(1, round(source_height * scale))
    return -(-height // stride) * stride, -(-width // stride) * stride


def input_of_shape(
    own: tuple[int, int], stride: int, source_width: int, source_height: int
) -> tuple[int, int]:
    """Return (height, width) of the input that gives a letterboxed picture the most pixels, at
    about the area of ``own`` (height, width). Each side is a multiple of ``stride``, at least
    ``LEAST_CELLS`` times it. The smallest of equally good inputs wins. For "centre" geometry."""
    most = own[0] * own[1] * MOST_AREA[0] // MOST_AREA[1]
    least = LEAST_CELLS * stride
    sizes = (
        (height, width)
        for height in range(least, most // least + 1, stride)
        for width in range(least, most // height + 1, stride)
    )

    def rank(size: tuple[int, int]) -> tuple[int, int]:
        height, width = size
        # Compare the scale, multiplied by both sides of the picture to make it an integer.
        return min(width * source_height, height * source_width), -height * width

    return max(sizes, key=rank, default=own)


def place(
    source_width: int, source_height: int, width: int, height: int, geometry: str
) -> tuple[int, int, int, int, Letterbox]:
    """Return left, top, width, height of the picture in the network's input, and its mapping."""
    if geometry == "stretch":
        letter = Letterbox(
            width / source_width, height / source_height, 0, 0, source_width, source_height
        )
        return 0, 0, width, height, letter
    if geometry not in GEOMETRIES:
        raise ValueError(f"geometry must be one of {', '.join(GEOMETRIES)}; got {geometry!r}")
    scale = min(width / source_width, height / source_height)
    to_int = int if geometry == "top-left-truncate" else round
    inner_width = max(1, to_int(source_width * scale))
    inner_height = max(1, to_int(source_height * scale))
    centred = geometry == "centre"
    left = (width - inner_width) // 2 if centred else 0
    top = (height - inner_height) // 2 if centred else 0
    letter = Letterbox(scale, scale, left, top, source_width, source_height)
    return left, top, inner_width, inner_height, letter
