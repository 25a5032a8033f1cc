"""Check that a network's outputs are read correctly, by running it on a synthetic picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.stages.readings import WHOLE, Reading, list_dense, rows_dense, view

SHAPES = 24  # rectangles in the picture
SEED = 3
# Plausible spread of a trained first layer's activations (``measure_spread``). Ten networks had
# 0.24 to 4.3; normalisation keeps it near 1. Pixels of 0..255 instead of 0..1 multiply it by 255.
SPREAD = 1 / 16, 16.0
TOLERANCE = 1e-3  # for probabilities; half precision rounds 1 to 1.0005


def draw(height: int, width: int) -> NDArray[np.uint8]:
    """Return a picture (u8 RGB [H, W, 3]) of a sky, a road, and rectangles in front of them."""
    rng = np.random.default_rng(SEED)
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = np.linspace(200, 90, height)[:, None, None]
    picture[height // 2 :] = np.minimum(picture[height // 2 :], 120)
    for _ in range(SHAPES):
        tall, wide = rng.integers(4, max(5, height // 3)), rng.integers(4, max(5, width // 4))
        top, left = rng.integers(0, max(1, height - 4)), rng.integers(0, max(1, width - 4))
        picture[top : top + tall, left : left + wide] = rng.integers(0, 256, 3)
    noise = rng.integers(0, 16, picture.shape, np.uint8)
    result: NDArray[np.uint8] = np.minimum(picture, 239) + noise
    return result


def doubt_outputs(
    outputs: list[NDArray[np.float32]], reading: Reading, size: tuple[int, int], names: int | None
) -> str | None:
    """Return why one picture's outputs, read by ``reading``, are impossible; None if they are not.
    ``size``: (width, height) of the input. ``names``: the number of class names."""
    if reading.classes is None:
        with np.errstate(all="ignore"):
            return _doubt_rows(rows_dense(outputs, reading=reading)[0], size)
    return _doubt_list(outputs, reading, size, names)


def measure_spread(channels: NDArray[np.floating[Any]]) -> float:
    """Return the upper quartile of the channels' standard deviations. ``channels``: the output
    [C, H, W] of the first convolution."""
    return float(np.percentile(channels.reshape(len(channels), -1).std(axis=1), 75))


def is_dark(spread: float) -> bool:
    """Return whether the weights are for pixels of 0..255, but the network received 0..1."""
    return 0 < spread < SPREAD[0]


def doubt_pixels(spread: float) -> str | None:
    """Return how the result of ``measure_spread`` contradicts the pixels' scale, or None."""
    if not is_dark(spread) and not SPREAD[1] < spread < np.inf:
        return None
    trained, given = ("0..255", "0..1") if is_dark(spread) else ("0..1", "0..255")
    return f"the weights of its first layer are for pixels of {trained}, not {given}"


def _doubt_rows(rows: NDArray[np.float32], size: tuple[int, int]) -> str | None:
    """Check decoded ``rows`` [N, 5 + C] with boxes as centres and sizes."""
    scores = rows[:, 4:]
    finite = scores[np.isfinite(scores)]
    if finite.size and (finite.min() < -TOLERANCE or finite.max() > 1 + TOLERANCE):
        column = int(np.argmax(np.abs(np.nan_to_num(scores) - 0.5).max(axis=0)))
        largest = np.nanmax(np.abs(scores[:, column]))
        what = f"class {column - 1} has scores" if column else "the objectness has values"
        return (
            f"{what} of {largest:.4g}, outside 0..1: its columns hold logits, or other values such "
            "as keypoints, angles or landmarks"
        )
    return _doubt_boxes(rows[:, :4], size)


def _doubt_boxes(boxes: NDArray[np.float32], size: tuple[int, int]) -> str | None:
    """Check ``boxes`` [N, 4], centres and sizes in network pixels."""
    boxes = boxes[np.isfinite(boxes).all(axis=1)]
    if not len(boxes):
        return None
    if (np.abs(boxes) <= 1.5).all() and max(size) > 3:
        return "all boxes are within one pixel: they are in 0..1, not in pixels"
    outside = (np.abs(boxes[:, :2] - np.array(size) / 2) > 1.5 * np.array(size)).any(axis=1)
    if outside.mean() > 0.5:
        return f"most boxes are outside the picture (one at {boxes[outside][0][:2].round()})"
    return None


def _doubt_list(
    outputs: list[NDArray[np.float32]], reading: Reading, size: tuple[int, int], names: int | None
) -> str | None:
    rows = list_dense(outputs, reading=reading, classes=0)[0]
    assert reading.classes is not None
    classes = view(outputs, reading.classes)[:, 0]
    scores, used = rows[:, 4], rows[:, 4] > 0
    if not used.any():
        filled = classes[: len(rows)][rows[:, :4].any(axis=1)]
        if (np.abs(filled - np.rint(filled)) > WHOLE).any():
            return (
                "no row has a score, and classes are not whole numbers: the columns have another "
                "order"
            )
        return None
    finite = scores[np.isfinite(scores)]
    if finite.max(initial=0) > 1 + TOLERANCE or finite.min(initial=0) < -TOLERANCE:
        worst = finite[np.argmax(np.abs(finite))]
        return f"a score is {worst:.4g}, outside 0..1: the columns have another order"
    classes = classes[: len(used)][used]
    if (np.abs(classes - np.rint(classes)) > WHOLE).any() or (classes < -0.5).any():
        return "the class of a detection is not a whole number: the columns have another order"
    lowest = float(classes.min()) - reading.first_class
    if lowest < -0.5 - (reading.background == "first"):
        return (
            f"a detection has class {classes.min():.0f}, but the first class is "
            f"{reading.first_class}"
        )
    last = float(classes.max()) - reading.first_class
    if names is not None and last >= names:
        return f"a detection has class {last:.0f}, but the file has {names} names"
    boxes = rows[used, :4]
    if (boxes[:, 2:] < -0.5).mean() > 0.3:
        return "boxes end before they begin: their columns have another order or another form"
    return _doubt_boxes(boxes, size)
