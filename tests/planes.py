"""Convert pictures to planes of YUV 4:2:0 and back with plain numpy, as a reference."""

import numpy as np

from detector.core.stages.planes import bgr_to_yuv
from detector.core.stages.preprocess import yuv_to_rgb
from detector.core.types import Colours, Image, Planes

BT601 = Colours(6, 1, 1, False, (0.299, 0.114))
BT709 = Colours(1, 1, 1, False, (0.2126, 0.0722))
FULL_RANGE = Colours(5, 1, 1, True, (0.299, 0.114))


def yuv_of(image: Image, colours: Colours = BT601) -> np.ndarray:
    matrix = bgr_to_yuv(colours).astype(np.float64)
    return image @ matrix[:, :3].T + matrix[:, 3]


def planes_of(image: Image, colours: Colours = BT601) -> Planes:
    """Convert u8 BGR [h, w, 3] with even sides. Each chroma value is the mean of four pixels."""
    yuv = yuv_of(image, colours)
    height, width = image.shape[:2]
    blocks = yuv.reshape(height // 2, 2, width // 2, 2, 3).mean(axis=(1, 3))
    y, u, v = yuv[..., 0], blocks[..., 1], blocks[..., 2]
    return Planes(
        *(np.rint(np.minimum(plane, 255)).astype(np.uint8) for plane in (y, u, v)), colours, bgr_of
    )


def bgr_of(planes: Planes) -> Image:
    """Return u8 BGR [h, w, 3]. Each chroma value is repeated for its four pixels."""
    wide = [plane.repeat(2, 0).repeat(2, 1) for plane in (planes.u, planes.v)]
    yuv = np.dstack([planes.y, *wide, np.ones_like(planes.y)]).astype(np.float64)
    rgb = np.rint(np.clip(yuv @ yuv_to_rgb(planes.colours).T.astype(np.float64), 0, 255))
    image: Image = np.ascontiguousarray(rgb[..., ::-1].astype(np.uint8))
    return image
