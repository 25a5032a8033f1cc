"""Measure how far two arrays are apart, and whether rounding explains it.

Tensors are compared by (rms of their difference) / (size of the first). A tensor's size is the rms
around its mean. In a type with relative rounding error u, a product's error is about u times its
size. Errors of different layers are independent, so that after n layers the error is near u x
sqrt(n) (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). Our networks have up to 250
layers, and sqrt(250) = 16.

    fp32   u = 2^-24. A kernel adds as many as 5,000 terms, in its own order. This multiplies the
           error by sqrt(5,000) = 70: 2^-24 x 70 x 16 = 7e-5
    tf32   u = 2^-11, as for fp16: 16 x 2^-11 = 0.8%
    bf16   u = 2^-8 in engines that keep activations in bf16: 16 x 2^-8 = 6%
    int8   A step is 1/255 of a range of ten rms, so rounding errs by 10/255/sqrt(12) = 1.1% of the
           rms. Weights and activations together err by 1.6%: 16 x 1.6% = 26%

``TOLERANCES`` are these errors, rounded; for fp32, 14 times the error. In yolov5n and the default
model, no tensor differs by more than 0.19 of its size in int8 and 0.033 in bf16, and no layer makes
the difference grow by more than 30%. A fault changes numbers by a tenth to a few times their size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TOLERANCES = {"fp32": 1e-3, "tf32": 0.01, "fp16": 0.01, "bf16": 0.06, "int8": 0.25}
ORDER = tuple(TOLERANCES)
# If both sides are fp32, one element that is off by more than OUTLIER x tolerance x (its value +
# the tensor's size) is a fault. Coarser types have such outliers without a fault: only rms counts.
OUTLIER = 30
# YUV converters and fixed-point resizes round by up to one level in each of three steps.
LEVELS = 3
BOX_COLUMNS = 4  # the first columns of a decoded row are its box
MANY = 1e-3  # largest share of a picture's values that rounding may move by more than LEVELS

Array = NDArray[Any]


class Deviation(NamedTuple):
    differs: bool
    max: float | None
    rms: float | None
    relative: float | None
    beyond: float | None
    tolerance: float


def tolerance_of(*precisions: str) -> float:
    """Return the tolerance of the coarsest precision."""
    return max(TOLERANCES.get(one, TOLERANCES["fp32"]) for one in precisions)


def rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0


def compare_pictures(a: Array, b: Array, levels: int = LEVELS) -> Deviation:
    """Compare u8 pictures. ``levels``: largest difference that counts as rounding."""
    if a.shape != b.shape:
        return Deviation(True, None, None, None, 1.0, levels)
    off = np.abs(a.astype(np.int16) - b)
    beyond = float(np.mean(off > levels)) if off.size else 0.0
    size = rms(off)
    differs = beyond > (MANY if levels else 0.0)
    return Deviation(
        differs, float(off.max(initial=0)), size, size / (rms(a) or 1.0), beyond, levels
    )


def compare_tensors(a: Array, b: Array, tolerance: float) -> Deviation:
    """Compare float arrays. NaN and infinities differ unless both sides have the same one."""
    if a.shape != b.shape:
        return Deviation(True, None, None, None, 1.0, tolerance)
    a64, b64 = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.ndim == 3 and min(a.shape[1:]) > BOX_COLUMNS:
        parts = [_measure(*pair, tolerance) for pair in zip(_split(a64), _split(b64), strict=True)]
        return max(parts, key=lambda one: (one.differs, one.relative or 0.0))
    return _measure(a64, b64, tolerance)


def columns_last(array: Array) -> Array:
    """Return [1, rows, columns] with a box per row, assuming more boxes than columns."""
    return array if array.shape[1] >= array.shape[2] else np.swapaxes(array, 1, 2)


def _split(array: Array) -> tuple[Array, Array]:
    """Separate boxes in pixels from scores, which are too small to affect an rms over both."""
    rows = columns_last(array)
    return rows[..., :BOX_COLUMNS], rows[..., BOX_COLUMNS:]


def _measure(a64: Array, b64: Array, tolerance: float) -> Deviation:
    finite = np.isfinite(a64) & np.isfinite(b64)
    unlike = ~finite & ~((a64 == b64) | (np.isnan(a64) & np.isnan(b64)))
    off = np.abs(np.where(finite, a64, 0) - np.where(finite, b64, 0))
    finite_values = a64[finite]
    size = rms(finite_values - finite_values.mean()) if finite_values.size else 0.0
    size = size or rms(finite_values) or 1e-30  # for a constant tensor
    deviation = rms(off[finite])
    scale = np.abs(np.where(finite, a64, 0)) + size
    beyond = float(np.mean((off > tolerance * scale) | unlike)) if a64.size else 0.0
    outlier = tolerance <= TOLERANCES["fp32"] and bool((off > OUTLIER * tolerance * scale).any())
    relative = deviation / size
    differs = bool(relative > tolerance or unlike.any() or outlier)
    return Deviation(differs, float(off.max(initial=0.0)), deviation, relative, beyond, tolerance)
