"""Classify a difference: apply known faults to A's numbers, and find one that gives B's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.types import Candidates, Detections, Letterbox
from detector.lab.compare.where.difference import BOX_COLUMNS, columns_last, rms

Array = NDArray[Any]

SWAPPED, PADDING, SHIFTED, RESIZED = "channels swapped", "padding", "shifted", "another resize"
SIGMOID, TRANSPOSED, SCALED = "sigmoid twice", "boxes transposed", "scaled"
STALE, OVERFLOW, NO_NUMBERS = "stale buffer", "float16 overflow", "not a number"
AGNOSTIC, THRESHOLD, COUNT = "NMS across classes", "another IoU threshold", "other boxes"
SIZE, OTHER, ROUNDING = "another size", "other numbers", "rounding that adds up"
GEOMETRY = "another geometry"

EXPLAINED = 0.35  # share of a difference's rms that a correct guess may leave unexplained
LARGEST_HALF = 65504.0  # the largest float16
RESIZES = {
    "INTER_NEAREST": cv2.INTER_NEAREST,
    "INTER_AREA": cv2.INTER_AREA,
    "INTER_CUBIC": cv2.INTER_CUBIC,
    "INTER_LANCZOS4": cv2.INTER_LANCZOS4,
}


class Kind(NamedTuple):
    name: str
    detail: str | None = None


def classify_picture(
    a: Array,
    b: Array,
    before: Array | None = None,
    fits: tuple[Letterbox, Letterbox] | None = None,
    source: Array | None = None,
) -> Kind:
    """``before``: A's previous picture. ``fits``: place of ``source`` (BGR) in ``a`` and ``b``."""
    if a.shape != b.shape:
        return Kind(SIZE, f"{_format_shape(a)} and {_format_shape(b)}")
    if fits is not None and (moved := _compare_fits(*fits)):
        return moved
    left, right = a.astype(np.float32), b.astype(np.float32)
    error = rms(left - right)
    inner = None if fits is None else _find_inside(fits[0], a)
    if inner is not None and rms((left - right)[inner]) < EXPLAINED * error / 3:
        outer = np.ones(a.shape[:2], bool)
        outer[inner] = False
        values = [np.unique(one[outer].reshape(-1, 3), axis=0)[0].tolist() for one in (a, b)]
        return Kind(PADDING, f"values {values[0]} and {values[1]}")
    if before is not None and _is_near(before.astype(np.float32), right, error):
        return Kind(STALE, "it shows the previous frame")
    if _is_near(left[..., ::-1], right, error):
        return Kind(SWAPPED, "BGR and RGB")
    if source is not None and inner is not None:
        for name, guess in _resize(source, left, inner):
            if _is_near(guess, right, error):
                return Kind(RESIZED, name)
    if shift := _fit_shift(left, right, inner):
        return Kind(SHIFTED, f"by {shift[0]:+.2f}, {shift[1]:+.2f} pixels (x, y)")
    return Kind(OTHER)


def _is_near(guess: Array, actual: Array, error: float) -> bool:
    return guess.shape == actual.shape and rms(guess - actual) < EXPLAINED * error


def _compare_fits(a: Letterbox, b: Letterbox) -> Kind | None:
    if not np.allclose((a.scale_x, a.scale_y), (b.scale_x, b.scale_y), rtol=1e-3):
        scales = f"({a.scale_x:.4g}, {a.scale_y:.4g}) in A, ({b.scale_x:.4g}, {b.scale_y:.4g}) in B"
        return Kind(GEOMETRY, f"scales {scales}")
    if (a.pad_x, a.pad_y) != (b.pad_x, b.pad_y):
        places = f"({a.pad_x:g}, {a.pad_y:g}) in A and ({b.pad_x:g}, {b.pad_y:g}) in B"
        return Kind(PADDING, f"the picture starts at {places}")
    return None


def _find_inside(fit: Letterbox, picture: Array) -> tuple[slice, slice]:
    height, width = picture.shape[:2]
    left, top = round(fit.pad_x), round(fit.pad_y)
    right = min(width, left + max(1, round(fit.width * fit.scale_x)))
    bottom = min(height, top + max(1, round(fit.height * fit.scale_y)))
    return slice(top, bottom), slice(left, right)


def _resize(source: Array, like: Array, inner: tuple[slice, slice]) -> Iterator[tuple[str, Array]]:
    height, width = like[inner].shape[:2]
    for name, interpolation in RESIZES.items():
        guess = like.copy()
        guess[inner] = cv2.resize(source, (width, height), interpolation=interpolation)[..., ::-1]
        yield name, guess


def _fit_shift(a: Array, b: Array, inner: tuple[slice, slice] | None) -> tuple[float, float] | None:
    """Fit b = a - dx * da/dx - dy * da/dy by least squares. Return B's shift (dx, dy) to the right
    and down; None if a shift explains too little of the difference."""
    part = inner or (slice(None), slice(None))
    grey, other = (one[part].mean(axis=2)[2:-2, 2:-2] for one in (a, b))
    if min(grey.shape) < 8:
        return None
    # Smooth both pictures: if one was shifted, interpolation has already blurred that one.
    grey, other = (cv2.GaussianBlur(one, (0, 0), 1.5) for one in (grey, other))
    down, right = np.gradient(grey)
    slopes = np.stack([-right.ravel(), -down.ravel()], axis=1)
    off = (other - grey).ravel()
    shift, *_ = np.linalg.lstsq(slopes, off, rcond=None)
    remaining = rms(off - slopes @ shift)
    if remaining > 0.6 * rms(off) or np.abs(shift).max() < 0.1:
        return None
    return float(shift[0]), float(shift[1])


def _format_shape(array: Array) -> str:
    return "x".join(map(str, array.shape))


def classify_tensor(a: Array, b: Array, tolerance: float, before: Array | None = None) -> Kind:
    if a.shape != b.shape:
        return Kind(SIZE, f"{_format_shape(a)} and {_format_shape(b)}")
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if np.isfinite(left).all() != np.isfinite(right).all():
        largest = float(np.abs(left if np.isfinite(left).all() else right).max())
        if largest > LARGEST_HALF / 2:
            return Kind(OVERFLOW, f"up to {largest:.3g}, but float16 ends at {LARGEST_HALF:g}")
        return Kind(NO_NUMBERS)
    if left.ndim == 3 and min(left.shape[1:]) > BOX_COLUMNS:  # decoded rows
        left, right = columns_last(left), columns_last(right)
        before = None if before is None or before.shape != a.shape else columns_last(before)
    error = rms(left - right)
    floor = 2 * tolerance * rms(left)
    for name, detail, guess in _guess(left, right, before):
        # The last limit rejects nearly flat guesses, since all nearly flat tensors are similar.
        most = min(max(EXPLAINED * error, floor), 0.7 * error, rms(guess - guess.mean()) / 2)
        if rms(guess - right) < most:
            return Kind(name, detail)
    if np.abs(left).max() > LARGEST_HALF and np.abs(right).max() <= LARGEST_HALF:
        return Kind(OVERFLOW, f"{np.abs(left).max():.3g} became {np.abs(right).max():.3g}")
    return Kind(OTHER)


def _guess(a: Array, b: Array, before: Array | None) -> Iterator[tuple[str, str | None, Array]]:
    if before is not None and before.shape == b.shape:
        yield STALE, "they belong to the previous frame", np.asarray(before, np.float64)
    for axis in (1, -1):
        if a.ndim > 2 and a.shape[axis] == 3:
            yield SWAPPED, "BGR and RGB", np.flip(a, axis)
    yield SIGMOID, None, _sigmoid(a)
    yield from _guess_score_sigmoid(a, b)
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
    if a.ndim == 4:  # as if a convolution's weights were scaled without its bias
        of_channel = (0, 2, 3)
        mine, theirs = (one - one.mean(of_channel, keepdims=True) for one in (a, b))
        size = float(np.vdot(mine, mine))
        factor = float(np.vdot(mine, theirs)) / size if size else 1.0
        if abs(factor - 1) > 0.05:
            yield SCALED, f"by {factor:.3g} around each channel's mean", b - theirs + mine * factor


def _guess_score_sigmoid(a: Array, b: Array) -> Iterator[tuple[str, str | None, Array]]:
    """Apply a sigmoid to the scores, but not the boxes, of [..., rows, 4 or 5 + classes]."""
    for first in (4, 5):
        if a.ndim > 1 and a.shape[-1] > first:
            guess = a.copy()
            guess[..., first:] = _sigmoid(a[..., first:])
            yield SIGMOID, f"from column {first} on", guess


def _sigmoid(values: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
    return result


def classify_candidates(a: Candidates, b: Candidates) -> Kind:
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


def classify_detections(
    candidates: Candidates,
    b: Detections,
    nms: Callable[[Candidates], Detections],
    same: Callable[[Detections, Detections], bool],
    count: int,
) -> Kind:
    """Try other options of A's ``nms`` (a ``partial``). ``count``: number of A's detections."""
    if isinstance(nms, partial):
        options = nms.keywords
        if same(nms.func(candidates, **{**options, "agnostic": not options.get("agnostic")}), b):
            scopes = ("within each class", "over all classes")
            mine = bool(options.get("agnostic"))
            return Kind(AGNOSTIC, f"A suppresses {scopes[mine]}, B {scopes[not mine]}")
        for iou in np.arange(0.05, 1.0, 0.05):
            if options.get("iou") and same(
                nms.func(candidates, **{**options, "iou": float(iou)}), b
            ):
                return Kind(THRESHOLD, f"{options['iou']:g} and about {iou:.2f}")
    return Kind(COUNT, f"{count} and {len(b)}")
