"""A source picture into a request's slot, by the geometry of the model's family."""

from __future__ import annotations

import cv2
from numpy import uint8
from numpy.typing import NDArray

from detector.types import Image, Letterbox

GEOMETRIES = ("centre", "top-left-truncate", "stretch")


def letterbox(
    image: Image, slot: NDArray[uint8], *, geometry: str, pad_value: int = 114
) -> Letterbox:
    """Resizes ``image`` (u8 BGR [h, w, 3]) into ``slot`` (u8 RGB [H, W, 3], written whole) without
    a buffer of its own.

    ``geometry``:
      "centre"             scale = min(W/w, H/h), size round(w*scale) x round(h*scale), padding
      split evenly with the
                           odd pixel right and below (YOLOv5, v7, v8...)
      "top-left-truncate"  the same scale, size int(w*scale) x int(h*scale), at the top left (YOLOX)
      "stretch"            both axes scaled on their own, no padding (darknet)
    Interpolation is linear. Returns where the picture lies.
    """
    source_height, source_width = image.shape[:2]
    height, width = slot.shape[:2]
    fit = place(source_width, source_height, width, height, geometry)
    left, top, inner_width, inner_height, letter = fit
    inner = slot[top : top + inner_height, left : left + inner_width]
    if (inner_width, inner_height) != (source_width, source_height):
        cv2.resize(image, (inner_width, inner_height), dst=inner, interpolation=cv2.INTER_LINEAR)
        image = inner
    # The channels are swapped after the resize: on the smaller picture, and in place.
    cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=inner)
    slot[:top] = pad_value
    slot[top + inner_height :] = pad_value
    slot[top : top + inner_height, :left] = pad_value
    slot[top : top + inner_height, left + inner_width :] = pad_value
    return letter


def smallest_input(
    longest: int, stride: int, source_width: int, source_height: int
) -> tuple[int, int]:
    """Height and width of the smallest input that holds a picture whose longest side is scaled to
    ``longest``: the other side is the next multiple of ``stride``. Of "centre" geometry, where
    padding costs time and nothing else.
    """
    scale = longest / max(source_width, source_height)
    width, height = max(1, round(source_width * scale)), max(1, round(source_height * scale))
    return -(-height // stride) * stride, -(-width // stride) * stride


def place(
    source_width: int, source_height: int, width: int, height: int, geometry: str
) -> tuple[int, int, int, int, Letterbox]:
    """Left, top, width and height of the picture inside the network's input, and the mapping back.
    Pixels.
    """
    if geometry == "stretch":
        letter = Letterbox(
            width / source_width, height / source_height, 0, 0, source_width, source_height
        )
        return 0, 0, width, height, letter
    scale = min(width / source_width, height / source_height)
    if geometry == "top-left-truncate":
        inner_width, inner_height = (
            max(1, int(source_width * scale)),
            max(1, int(source_height * scale)),
        )
        left = top = 0
    elif geometry == "centre":
        inner_width, inner_height = (
            max(1, round(source_width * scale)),
            max(1, round(source_height * scale)),
        )
        left, top = (width - inner_width) // 2, (height - inner_height) // 2
    else:
        raise ValueError(f"geometry must be one of {', '.join(GEOMETRIES)}; got {geometry!r}")
    letter = Letterbox(scale, scale, left, top, source_width, source_height)
    return left, top, inner_width, inner_height, letter
