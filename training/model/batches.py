"""Make batches of pictures: place and recolour them, run the teacher, and prepare batches ahead.

Batch number i depends only on the seed and on i, so an interrupted run continues with the same
batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from model.data import TRUST, Picture
from model.teacher import Teacher, cell_centres

GREY = 128  # the letterbox colour that darknet's letter_box=1 uses
FULL_WIDTH = 416  # pixels of the largest training canvas
LEAST_VISIBLE = 0.3  # a box that keeps less than this share of its area becomes a region to ignore
SMALLEST = 3.0  # pixels: a box with a shorter side becomes a region to ignore

Rect = tuple[int, int, int, int]  # x1, y1, x2, y2 on the canvas
Trust = tuple[float, float]  # (person, vehicle): target score / the teacher's score


@dataclass(slots=True)
class Sample:
    image: NDArray[np.uint8]  # RGB [H, W, 3]
    boxes: NDArray[np.float32]  # [n, 4] xyxy
    classes: NDArray[np.int64]  # [n]
    ignored: NDArray[np.bool_]  # [n]
    tiles: list[tuple[Rect, Trust]]  # area that each source picture covers, and its trust


@dataclass(slots=True)
class Batch:
    images: NDArray[np.uint8]  # RGB [B, H, W, 3]
    boxes: NDArray[np.float32]  # [T, 4] true boxes of all pictures
    classes: NDArray[np.int64]  # [T]
    owners: NDArray[np.int64]  # [T] index of the picture that a box belongs to
    taught_boxes: NDArray[np.float32]  # [B, N, 4] the teacher's boxes
    taught: NDArray[np.float32]  # [B, N, 2] the teacher's scores
    trust: NDArray[np.float32]  # [B, N, 2] target score / the teacher's score
    counts: NDArray[np.float32]  # [B, N, 2] 0 in regions to ignore, else 1


class Augmenter:
    """Chooses pictures at random, by weight, and makes a training sample from one or four."""

    def __init__(self, pictures: list[Picture]) -> None:
        self.pictures = pictures
        weights = np.array([picture.weight for picture in pictures])
        self._bounds = np.cumsum(weights / weights.sum())

    def draw(self, rng: np.random.Generator) -> Picture:
        at = int(np.searchsorted(self._bounds, rng.random()))
        return self.pictures[min(at, len(self.pictures) - 1)]

    def sample(self, rng: np.random.Generator, size: tuple[int, int], mosaic: float) -> Sample:
        """Make a sample of ``size`` (height, width). ``mosaic``: probability of 4 pictures."""
        height, width = size
        canvas = np.full((height, width, 3), GREY, np.uint8)
        if rng.random() < mosaic:
            x, y = int(width * rng.uniform(0.3, 0.7)), int(height * rng.uniform(0.3, 0.7))
            rects = [(0, 0, x, y), (x, 0, width, y), (0, y, x, height), (x, y, width, height)]
            scales = (0.5, 1.3)
        else:
            rects, scales = [(0, 0, width, height)], (0.7, 1.7)
        # On a small canvas, enlarge and crop the picture. Then objects are almost as large as on
        # the full canvas, so what the network learns also holds on the full canvas.
        boost = max(1.0, FULL_WIDTH / width) ** 0.7
        parts = []
        for rect in rects:
            picture = self.draw(rng)
            fit = min(width / picture.image.shape[1], height / picture.image.shape[0])
            scale = fit * boost * np.exp(rng.uniform(np.log(scales[0]), np.log(scales[1])))
            parts.append(place(canvas, picture, rect, scale, rng))
        image = recolour(degrade(canvas, rng), rng)
        boxes, classes, ignored = (np.concatenate([part[i] for part in parts]) for i in range(3))
        return Sample(image, boxes, classes, ignored, [part[3] for part in parts])


def place(
    canvas: NDArray[np.uint8], picture: Picture, rect: Rect, scale: float, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_], tuple[Rect, Trust]]:
    """Draw the picture into a rectangle of the canvas: scaled, shifted, sometimes mirrored.

    Returns boxes, classes and ignored flags on the canvas, and the tile that the picture covers.
    """
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
        picture.image,
        matrix,
        (x2 - x1, y2 - y1),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(GREY, GREY, GREY),
    )
    boxes = picture.boxes.copy()
    xs = np.sort(boxes[:, [0, 2]] * a + tx, axis=1)
    boxes[:, [0, 2]], boxes[:, [1, 3]] = xs + x1, boxes[:, [1, 3]] * sy + top + y1
    clipped, cut = clip_boxes(boxes, rect)
    near = (int(max(x1, x1 + left)), int(max(y1, y1 + top)))
    far_x = int(min(x2, x1 + left + sx * source_width))
    far_y = int(min(y2, y1 + top + sy * source_height))
    tile = ((*near, far_x, far_y), TRUST[picture.kind])
    alive = (clipped[:, 2] - clipped[:, 0] > 0.5) & (clipped[:, 3] - clipped[:, 1] > 0.5)
    return clipped[alive], picture.classes[alive], (picture.ignored | cut)[alive], tile


def clip_boxes(
    boxes: NDArray[np.float32], rect: Rect
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Clip boxes to the rectangle. Return the boxes, and a mask of boxes that are now too small."""
    clipped = boxes.copy()
    clipped[:, [0, 2]] = clipped[:, [0, 2]].clip(rect[0], rect[2])
    clipped[:, [1, 3]] = clipped[:, [1, 3]].clip(rect[1], rect[3])
    sides, whole = clipped[:, 2:] - clipped[:, :2], boxes[:, 2:] - boxes[:, :2]
    share = sides.prod(axis=1) / np.maximum(whole.prod(axis=1), 1e-6)
    return clipped, (share < LEAST_VISIBLE) | (sides.min(axis=1, initial=1e9) < SMALLEST)


def degrade(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Sometimes blur the picture, sometimes compress it."""
    if rng.random() < 0.08:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.5, 1.5))
    if rng.random() < 0.1:
        quality = [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(25, 80))]
        image = cv2.imdecode(cv2.imencode(".jpg", image, quality)[1], cv2.IMREAD_COLOR)
    return image


def recolour(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Change hue, saturation and value; sometimes make the picture grey, or dark and noisy."""
    hue, saturation, value = rng.uniform(-1, 1, 3) * (0.015, 0.6, 0.4)
    ramp = np.arange(256)
    if rng.random() < 0.04:
        image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    night = rng.random() < 0.1
    gamma = float(np.exp(rng.uniform(0.3, 1.1) if night else rng.uniform(-0.25, 0.25)))
    bright = ((ramp / 255) ** gamma * 255 * (1 + value)).clip(0, 255).astype(np.uint8)
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hues, saturations = (ramp + hue * 180) % 180, (ramp * (1 + saturation)).clip(0, 255)
    table = np.stack([hues, saturations, bright], axis=-1)
    image = cv2.cvtColor(cv2.LUT(hsv, table.astype(np.uint8)[None]), cv2.COLOR_HSV2RGB)
    if gamma > 1.35 or rng.random() < 0.04:
        noise = rng.standard_normal(image.shape, dtype=np.float32) * rng.uniform(2, 10)
        image = (image + noise).clip(0, 255).astype(np.uint8)
    return image


def make_batch(
    augmenter: Augmenter,
    teacher: Teacher,
    seed: int,
    number: int,
    size: tuple[int, int],
    batch: int,
    mosaic: float,
) -> Batch:
    """Make batch ``number`` with ``batch`` samples and the teacher's outputs for them."""
    rng = np.random.default_rng([seed, number])
    samples = [augmenter.sample(rng, size, mosaic) for _ in range(batch)]
    images = np.stack([sample.image for sample in samples])
    taught_boxes, taught = teacher(images)
    fields = [cell_fields(sample, *size) for sample in samples]
    real = [~sample.ignored for sample in samples]
    return Batch(
        images,
        np.concatenate([s.boxes[r] for s, r in zip(samples, real, strict=True)]),
        np.concatenate([s.classes[r] for s, r in zip(samples, real, strict=True)]),
        np.concatenate([np.full(int(r.sum()), i, np.int64) for i, r in enumerate(real)]),
        taught_boxes.astype(np.float32),
        taught.astype(np.float32),
        np.stack([trust for trust, _ in fields]),
        np.stack([counts for _, counts in fields]),
    )


def cell_fields(
    sample: Sample, height: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the fields ``trust`` and ``counts`` of a Batch for one sample, [N, 2] each."""
    centres = cell_centres(height, width)
    trust = np.zeros((len(centres), 2), np.float32)
    for rect, value in sample.tiles:
        trust[contains(rect, centres)] = value
    counts = np.ones((len(centres), 2), np.float32)
    ignored = sample.ignored
    for box, c in zip(sample.boxes[ignored], sample.classes[ignored], strict=True):
        counts[contains(box, centres), c] = 0
    return trust, counts


def contains(rect, points: NDArray[np.float32]) -> NDArray[np.bool_]:
    x, y = points.T
    return (x >= rect[0]) & (x < rect[2]) & (y >= rect[1]) & (y < rect[3])


def batches(
    make: Callable[[int], Batch], start: int, stop: int, threads: int, ahead: int
) -> Iterator[Batch]:
    """Yield ``make(i)`` for i in range(start, stop), while threads make ``ahead`` more batches."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Batch]] = deque()
        try:
            for number in range(start, stop):
                waiting.append(pool.submit(make, number))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
