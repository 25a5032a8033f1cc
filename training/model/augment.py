"""Pictures -> one training sample: placed on a canvas alone or in fours, mirrored, recoloured, worn."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from model.data import TRUST, Picture

GREY = 128  # of the letterbox, as darknet's letter_box=1 has it
VISIBLE = 0.3  # a box of which less is left becomes a region to ignore
SMALLEST = 3.0  # pixels, likewise

Rect = tuple[int, int, int, int]  # x1, y1, x2, y2 on the canvas


@dataclass(slots=True)
class Sample:
    image: NDArray[np.uint8]  # RGB [H, W, 3]
    boxes: NDArray[np.float32]  # [n, 4] xyxy
    classes: NDArray[np.int64]  # [n]
    ignored: NDArray[np.bool_]  # [n]
    tiles: list[tuple[Rect, tuple[float, float]]]  # where whose pixels lie, and the trust in the teacher there


class Augmenter:
    def __init__(self, pictures: list[Picture]) -> None:
        self.pictures = pictures
        weights = np.array([picture.weight for picture in pictures])
        self._bounds = np.cumsum(weights / weights.sum())

    def draw(self, rng: np.random.Generator) -> Picture:
        return self.pictures[min(int(np.searchsorted(self._bounds, rng.random())), len(self.pictures) - 1)]

    def sample(self, rng: np.random.Generator, size: tuple[int, int], mosaic: float) -> Sample:
        """``size``: height, width. ``mosaic``: the share of samples made of four pictures."""
        height, width = size
        canvas = np.full((height, width, 3), GREY, np.uint8)
        if rng.random() < mosaic:
            x, y = int(width * rng.uniform(0.3, 0.7)), int(height * rng.uniform(0.3, 0.7))
            rects = [(0, 0, x, y), (x, 0, width, y), (0, y, x, height), (x, y, width, height)]
            scales = (0.5, 1.3)
        else:
            rects, scales = [(0, 0, width, height)], (0.7, 1.7)
        # Small canvases show crops rather than small objects: what is learnt there holds for the full size.
        boost = (SIDE_OF_FULL / width) ** 0.7
        parts = []
        for rect in rects:
            picture = self.draw(rng)
            fit = min(width / picture.image.shape[1], height / picture.image.shape[0])
            scale = fit * boost * np.exp(rng.uniform(np.log(scales[0]), np.log(scales[1])))
            parts.append(place(canvas, picture, rect, scale, rng))
        image = recoloured(worn(canvas, rng), rng)
        boxes, classes, ignored = (np.concatenate([part[i] for part in parts]) for i in range(3))
        return Sample(image, boxes, classes, ignored, [part[3] for part in parts])


SIDE_OF_FULL = 416


def place(
    canvas: NDArray[np.uint8], picture: Picture, rect: Rect, scale: float, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_], tuple[Rect, tuple[float, float]]]:
    """Draws the picture into a rectangle of the canvas, scaled, shifted, perhaps mirrored; returns its labels there."""
    x1, y1, x2, y2 = rect
    source_height, source_width = picture.image.shape[:2]
    squeeze = np.exp(rng.uniform(-0.12, 0.12))
    sx, sy = scale * squeeze, scale / squeeze
    slack = (x2 - x1) - sx * source_width, (y2 - y1) - sy * source_height
    left, top = (rng.uniform(min(0.0, room), max(0.0, room)) for room in slack)
    mirror = rng.random() < 0.5
    a, tx = (-sx, left + sx * source_width) if mirror else (sx, left)
    # Pixel centres: u' = a * (u + 0.5) + t - 0.5
    matrix = np.array([[a, 0, tx + a / 2 - 0.5], [0, sy, top + sy / 2 - 0.5]], np.float32)
    canvas[y1:y2, x1:x2] = cv2.warpAffine(
        picture.image, matrix, (x2 - x1, y2 - y1), flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT, borderValue=(GREY, GREY, GREY),
    )  # fmt: skip
    boxes = picture.boxes.copy()
    xs = np.sort(boxes[:, [0, 2]] * a + tx, axis=1)
    boxes[:, [0, 2]], boxes[:, [1, 3]] = xs + x1, boxes[:, [1, 3]] * sy + top + y1
    kept, cut = clipped(boxes, rect)
    inside = (int(max(x1, x1 + left)), int(max(y1, y1 + top)))
    far = (int(min(x2, x1 + left + sx * source_width)), int(min(y2, y1 + top + sy * source_height)))
    tile = ((*inside, *far), TRUST[picture.kind])
    alive = (kept[:, 2] - kept[:, 0] > 0.5) & (kept[:, 3] - kept[:, 1] > 0.5)
    return kept[alive], picture.classes[alive], (picture.ignored | cut)[alive], tile


def clipped(boxes: NDArray[np.float32], rect: Rect) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The boxes cut to the rectangle, and which of them are too little to be asked for."""
    kept = boxes.copy()
    kept[:, [0, 2]] = kept[:, [0, 2]].clip(rect[0], rect[2])
    kept[:, [1, 3]] = kept[:, [1, 3]].clip(rect[1], rect[3])
    sides, whole = kept[:, 2:] - kept[:, :2], boxes[:, 2:] - boxes[:, :2]
    share = sides.prod(axis=1) / np.maximum(whole.prod(axis=1), 1e-6)
    return kept, (share < VISIBLE) | (sides.min(axis=1, initial=1e9) < SMALLEST)


def worn(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Blur, and what a codec leaves."""
    if rng.random() < 0.08:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.5, 1.5))
    if rng.random() < 0.1:
        quality = int(rng.integers(25, 80))
        image = cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)
    return image


def recoloured(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Hue, saturation and value; sometimes grey, sometimes dark with noise."""
    hue, saturation, value = rng.uniform(-1, 1, 3) * (0.015, 0.6, 0.4)
    ramp = np.arange(256)
    if rng.random() < 0.04:
        image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    gamma = float(np.exp(rng.uniform(0.3, 1.1))) if rng.random() < 0.1 else float(np.exp(rng.uniform(-0.25, 0.25)))
    bright = ((ramp / 255) ** gamma * 255 * (1 + value)).clip(0, 255).astype(np.uint8)
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    table = np.stack([(ramp + hue * 180) % 180, (ramp * (1 + saturation)).clip(0, 255), bright], axis=-1)
    image = cv2.cvtColor(cv2.LUT(hsv, table.astype(np.uint8)[None]), cv2.COLOR_HSV2RGB)
    if gamma > 1.35 or rng.random() < 0.04:
        noise = rng.standard_normal(image.shape, dtype=np.float32) * rng.uniform(2, 10)
        image = (image + noise).clip(0, 255).astype(np.uint8)
    return image
