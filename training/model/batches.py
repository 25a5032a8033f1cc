"""Batches, made ahead by threads. Batch number i depends on the seed and on i alone, so a run resumes where it was."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.augment import Augmenter, Sample
from model.cells import centres
from model.teacher import Teacher


@dataclass(slots=True)
class Batch:
    images: NDArray[np.uint8]  # RGB [B, H, W, 3]
    boxes: NDArray[np.float32]  # [T, 4] true boxes of all pictures
    classes: NDArray[np.int64]  # [T]
    owners: NDArray[np.int64]  # [T] which picture
    taught_boxes: NDArray[np.float32]  # [B, N, 4]
    taught: NDArray[np.float32]  # [B, N, 2] the teacher's scores
    trust: NDArray[np.float32]  # [B, N, 2] how much of them is a target
    counts: NDArray[np.float32]  # [B, N, 2] 0 in regions to ignore


def make_batch(
    augmenter: Augmenter, teacher: Teacher, seed: int, number: int, size: tuple[int, int], batch: int, mosaic: float
) -> Batch:
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


def cell_fields(sample: Sample, height: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[N, 2] each: the trust in the teacher, and 0 where a class is neither right nor wrong."""
    middle = centres(height, width)
    trust = np.zeros((len(middle), 2), np.float32)
    for rect, value in sample.tiles:
        trust[inside(middle, rect)] = value
    counts = np.ones((len(middle), 2), np.float32)
    for box, c in zip(sample.boxes[sample.ignored], sample.classes[sample.ignored], strict=True):
        counts[inside(middle, box), c] = 0
    return trust, counts


def inside(points: NDArray[np.float32], rect) -> NDArray[np.bool_]:
    x, y = points.T
    return (x >= rect[0]) & (x < rect[2]) & (y >= rect[1]) & (y < rect[3])


def batches(make: Callable[[int], Batch], start: int, stop: int, threads: int, ahead: int) -> Iterator[Batch]:
    """``make(i)`` for i in start..stop, in order; ``ahead`` of them are being made."""
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
