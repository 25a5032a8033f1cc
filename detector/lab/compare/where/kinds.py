"""What a difference looks like: the known fault that, made of A's numbers, comes nearest to B's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.types import Candidates, Detections, Letterbox
from detector.lab.compare.where.difference import BOX, columns_last, rms

Array = NDArray[Any]

SWAPPED, PADDING, SHIFTED, RESIZED = "channels swapped", "padding", "shifted", "another resize"
SIGMOID, TRANSPOSED, SCALED = "sigmoid twice", "boxes transposed", "scaled"
STALE, OVERFLOW, NO_NUMBERS = "stale buffer", "float16 overflow", "not a number"
AGNOSTIC, THRESHOLD, COUNT = "NMS across classes", "another IoU threshold", "other boxes"
SIZE, OTHER, ROUNDING = "another size", "other numbers", "rounding that adds up"
GEOMETRY = "another geometry"

EXPLAINED = 0.35  # of the difference's rms: what a guess may leave of it
LARGEST_HALF = 65504.0  # float16
RESIZES = {
    "INTER_NEAREST": cv2.INTER_NEAREST,
    "INTER_AREA": cv2.INTER_AREA,
    "INTER_CUBIC": cv2.INTER_CUBIC,
    "INTER_LANCZOS4": cv2.INTER_LANCZOS4,
}


class Kind(NamedTuple):
    name: str
    detail: str | None = None


def kind_of_picture(
    a: Array,
    b: Array,
    before: Array | None = None,
    fits: tuple[Letterbox, Letterbox] | None = None,
    source: Array | None = None,
) -> Kind:
    """``before``: A's previous frame. ``fits``: the source's place in each. ``source``: u8 BGR."""
    if a.shape != b.shape:
        return Kind(SIZE, f"{_sides(a)} and {_sides(b)}")
    if fits is not None and (moved := _moved(*fits)):
        return moved
    left, right = a.astype(np.float32), b.astype(np.float32)
    whole = rms(left - right)
    inner = None if fits is None else _inside(fits[0], a)
    if inner is not None and rms((left - right)[inner]) < EXPLAINED * whole / 3:
        outer = np.ones(a.shape[:2], bool)
        outer[inner] = False
        values = [np.unique(one[outer].reshape(-1, 3), axis=0)[0].tolist() for one in (a, b)]
        return Kind(PADDING, f"values {values[0]} and {values[1]}")
    if before is not None and _near(before.astype(np.float32), right, whole):
        return Kind(STALE, "it shows the previous frame")
    if _near(left[..., ::-1], right, whole):
        return Kind(SWAPPED, "BGR and RGB")
    if source is not None and inner is not None:
        for name, guess in _resized(source, left, inner):
            if _near(guess, right, whole):
                return Kind(RESIZED, name)
    if shift := _shift(left, right, inner):
        return Kind(SHIFTED, f"by {shift[0]:+.2f}, {shift[1]:+.2f} pixels (x, y)")
    return Kind(OTHER)


def _near(guess: Array, found: Array, whole: float) -> bool:
    return guess.shape == found.shape and rms(guess - found) < EXPLAINED * whole


def _moved(a: Letterbox, b: Letterbox) -> Kind | None:
    if not np.allclose((a.scale_x, a.scale_y), (b.scale_x, b.scale_y), rtol=1e-3):
        return Kind(GEOMETRY, f"scales {a.scale_x:.4g}, {a.scale_y:.4g} and {b.scale_x:.4g}, ...")
    if (a.pad_x, a.pad_y) != (b.pad_x, b.pad_y):
        places = f"{a.pad_x:g}, {a.pad_y:g} and {b.pad_x:g}, {b.pad_y:g} (x, y)"
        return Kind(PADDING, f"the picture starts at {places}")
    return None


def _inside(fit: Letterbox, picture: Array) -> tuple[slice, slice]:
    height, width = picture.shape[:2]
    left, top = round(fit.pad_x), round(fit.pad_y)
    right = min(width, left + max(1, round(fit.width * fit.scale_x)))
    bottom = min(height, top + max(1, round(fit.height * fit.scale_y)))
    return slice(top, bottom), slice(left, right)


def _resized(source: Array, like: Array, inner: tuple[slice, slice]) -> Iterator[tuple[str, Array]]:
    height, width = like[inner].shape[:2]
    for name, way in RESIZES.items():
        guess = like.copy()
        guess[inner] = cv2.resize(source, (width, height), interpolation=way)[..., ::-1]
        yield name, guess


def _shift(a: Array, b: Array, inner: tuple[slice, slice] | None) -> tuple[float, float] | None:
    """Return how far B's content lies right of and below A's: b = a - dx * da/dx - dy * da/dy, by
    least squares. None where that does not explain most of the difference."""
    part = inner or (slice(None), slice(None))
    grey, other = (one[part].mean(axis=2)[2:-2, 2:-2] for one in (a, b))
    if min(grey.shape) < 8:
        return None
    # Smoothed: a shift by interpolation also blurs, which should not count.
    grey, other = (cv2.GaussianBlur(one, (0, 0), 1.5) for one in (grey, other))
    down, right = np.gradient(grey)
    slopes = np.stack([-right.ravel(), -down.ravel()], axis=1)
    off = (other - grey).ravel()
    found, *_ = np.linalg.lstsq(slopes, off, rcond=None)
    left = rms(off - slopes @ found)
    if left > 0.6 * rms(off) or np.abs(found).max() < 0.1:
        return None
    return float(found[0]), float(found[1])


def _sides(array: Array) -> str:
    return "x".join(map(str, array.shape))


def kind_of_tensor(a: Array, b: Array, tolerance: float, before: Array | None = None) -> Kind:
    if a.shape != b.shape:
        return Kind(SIZE, f"{_sides(a)} and {_sides(b)}")
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if np.isfinite(left).all() != np.isfinite(right).all():
        sound = left if np.isfinite(left).all() else right
        largest = float(np.abs(sound).max())
        if largest > LARGEST_HALF / 2:
            return Kind(OVERFLOW, f"up to {largest:.3g}, but float16 ends at {LARGEST_HALF:g}")
        return Kind(NO_NUMBERS)
    if left.ndim == 3 and min(left.shape[1:]) > BOX:  # decoded rows
        left, right = columns_last(left), columns_last(right)
        before = None if before is None or before.shape != a.shape else columns_last(before)
    whole = rms(left - right)
    floor = 2 * tolerance * rms(left)
    for name, detail, guess in _guesses(left, right, before):
        # Of its own size too: a guess that is nearly flat is near to anything that is.
        most = min(max(EXPLAINED * whole, floor), 0.7 * whole, rms(guess - guess.mean()) / 2)
        if rms(guess - right) < most:
            return Kind(name, detail)
    if np.abs(left).max() > LARGEST_HALF and np.abs(right).max() <= LARGEST_HALF:
        return Kind(OVERFLOW, f"{np.abs(left).max():.3g} became {np.abs(right).max():.3g}")
    return Kind(OTHER)


def _guesses(a: Array, b: Array, before: Array | None) -> Iterator[tuple[str, str | None, Array]]:
    if before is not None and before.shape == b.shape:
        yield STALE, "they belong to the previous frame", np.asarray(before, np.float64)
    for axis in (1, -1):
        if a.ndim > 2 and a.shape[axis] == 3:
            yield SWAPPED, "BGR and RGB", np.flip(a, axis)
    yield SIGMOID, None, _sigmoid(a)
    yield from _partly_sigmoid(a, b)
    for axis in {a.ndim - 1, 1} if a.ndim > 1 else ():
        if a.shape[axis] >= 4:
            crossed = [1, 0, 3, 2, *range(4, a.shape[axis])]
            yield TRANSPOSED, "x and y", np.take(a, crossed, axis)
    if a.ndim > 1 and a.shape[-1] == a.shape[-2]:
        yield TRANSPOSED, "rows and columns", np.swapaxes(a, -1, -2)
    size = float(np.vdot(a, a))
    factor = float(np.vdot(a, b)) / size if size else 1.0
    if abs(factor - 1) > 0.05:
        yield SCALED, f"by {factor:.3g}", a * factor
    if a.ndim == 4:  # a convolution's weights, and not its bias
        of_channel = (0, 2, 3)
        mine, theirs = (one - one.mean(of_channel, keepdims=True) for one in (a, b))
        size = float(np.vdot(mine, mine))
        factor = float(np.vdot(mine, theirs)) / size if size else 1.0
        if abs(factor - 1) > 0.05:
            yield SCALED, f"by {factor:.3g} around each channel's mean", b - theirs + mine * factor


def _partly_sigmoid(a: Array, b: Array) -> Iterator[tuple[str, str | None, Array]]:
    """A sigmoid over the scores of [.., rows, 4 or 5 + classes], and none over their boxes."""
    for first in (4, 5):
        if a.ndim > 1 and a.shape[-1] > first:
            guess = a.copy()
            guess[..., first:] = _sigmoid(a[..., first:])
            yield SIGMOID, f"from column {first} on", guess


def _sigmoid(values: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
    return result


def kind_of_candidates(a: Candidates, b: Candidates) -> Kind:
    if len(a.scores) and len(a.scores) == len(b.scores):
        if np.allclose(a.boxes[:, [1, 0, 3, 2]], b.boxes, atol=1e-2):
            return Kind(TRANSPOSED, "x and y")
        if np.allclose(a.boxes, b.boxes, atol=1e-2):
            if np.allclose(_sigmoid(a.scores), b.scores, atol=1e-3):
                return Kind(SIGMOID, "of the scores")
            return Kind(OTHER, "scores" if (a.class_ids == b.class_ids).all() else "classes")
        return Kind(OTHER, "boxes")
    rows = {tuple(np.round(box, 1)): score for box, score in zip(b.boxes, b.scores, strict=True)}
    pairs = [
        (score, rows[key])
        for box, score in zip(a.boxes, a.scores, strict=True)
        if (key := tuple(np.round(box, 1))) in rows
    ]
    if pairs:
        mine, theirs = np.array(pairs).T
        if np.allclose(_sigmoid(mine), theirs, atol=1e-3):
            return Kind(SIGMOID, "of the scores")
    return Kind(COUNT, f"{len(a.scores)} and {len(b.scores)}")


def kind_of_detections(
    candidates: Candidates,
    b: Detections,
    nms: Callable[[Candidates], Detections],
    same: Callable[[Detections, Detections], bool],
    count: int,
) -> Kind:
    """``nms``: A's. ``count``: of A's detections. Options of a ``partial`` are tried."""
    if isinstance(nms, partial):
        told = nms.keywords
        if same(nms.func(candidates, **{**told, "agnostic": not told.get("agnostic")}), b):
            ways = ("within each class", "over all classes")
            mine = bool(told.get("agnostic"))
            return Kind(AGNOSTIC, f"A suppresses {ways[mine]}, B {ways[not mine]}")
        for iou in np.arange(0.05, 1.0, 0.05):
            if told.get("iou") and same(nms.func(candidates, **{**told, "iou": float(iou)}), b):
                return Kind(THRESHOLD, f"{told['iou']:g} and about {iou:.2f}")
    return Kind(COUNT, f"{count} and {len(b)}")
