"""Choose which value becomes black and which white, for samples of more than 8 bits.

Grey that uses little of its range, such as a thermal camera's, is stretched. The range to stretch
is chosen for each picture or once for a video. For a camera it changes gradually."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.sources._bgr import is_deep_grey, lines_of
from detector.core.sources._cv2 import cv2
from detector.core.sources.base import FULL, GreyRange
from detector.core.types import Image

Samples = NDArray[Any]
DEPTHS = (8, 10, 12, 14, 16, 24, 32)  # bits per sample of cameras and of integer types
OVERSHOOT = 2.0  # floats of 0..1 may reach this value after sharpening or enlarging
# Grey that uses less than this share of its range is stretched. NARROW_GUESSED: for guessed depth.
NARROW, NARROW_GUESSED = 0.1, 0.25
NOISE = 7  # levels; grey whose contrast is at most this is not stretched
OUTLIERS = 0.001  # share of the samples at either end that may be dead or hot pixels
BEYOND = 1 / 16  # outliers are farther from the other samples than this share of their range
SAMPLED = 1 << 18  # samples of a picture used to find outliers
FOLLOW_SHARE = 0.05  # a camera's range moves by this share of the way to each picture's range


def choose_range(samples: Samples, capacity: int, setting: str | GreyRange) -> GreyRange | None:
    """Choose the range of grey [h, w] or colours [h, w, 3] stored in ``capacity`` bits. None if the
    samples use all of 16 bits."""
    is_grey, is_float = samples.ndim < 3, samples.dtype.kind == "f"
    if is_grey and isinstance(setting, GreyRange):
        return setting
    low, high = find_ends(samples)
    if np.isnan(high):
        return GreyRange(0, 1, "its samples are all NaN or infinite")
    if low < 0 or (is_float and high > 2**16):
        note = f"its samples, {low:g} to {high:g}, were mapped to shades from black to white"
        return GreyRange(low, high, note)
    if is_float:
        bits = 0 if high <= OVERSHOOT else next(bits for bits in DEPTHS if high <= 2**bits)
    else:
        bits = capacity if is_grey and setting == FULL else bits_in_use(samples, capacity)
    most, share = 2**bits - 1 or 1, NARROW_GUESSED if 0 < bits < capacity else NARROW
    if is_grey and setting != FULL and NOISE * (not is_float) < high - low < share * most:
        note = f"its grey samples use {low:.6g} to {high:.6g} of 0 to {most}, so they were"
        note = f"{note} stretched to the full range (--grey-range full prevents it)"
        return GreyRange(low, high, note)
    if is_float:
        note = f"its float samples of 0 to {most} were mapped to shades from black to white"
        return GreyRange(0, most, note)
    if bits == capacity:
        return None if capacity == 16 else GreyRange(0, most)
    note = (
        f"its samples use only {bits} of {capacity} bits, so they were stretched to the full range"
    )
    return GreyRange(0, most, note if high else "")


def bits_in_use(samples: Samples, capacity: int) -> int:
    """Estimate the depth that integers had before they were stored in ``capacity`` bits."""
    used = int(samples.max()).bit_length()
    # A dark picture may leave the highest bit unused.
    if used >= capacity - 1 or (capacity == 16 and _was_widened(samples)):
        return capacity
    return next(depth for depth in (*DEPTHS, capacity) if depth >= used)


def _was_widened(samples: Samples) -> bool:
    """Return whether 16 bits hold 8-bit values: lower bytes are all 0, or equal the upper bytes."""
    return not int(np.bitwise_or.reduce(samples, axis=None)) & 255 or not (samples % 257).any()


def find_ends(samples: Samples) -> tuple[float, float]:
    """Return the lowest and the highest sample, ignoring outliers; NaN if none is finite."""
    some = samples.reshape(-1)[:: max(1, samples.size // SAMPLED) | 1]
    known, some = np.isfinite(samples), some[np.isfinite(some)]
    if not some.size:
        return np.nan, np.nan
    places = [round((some.size - 1) * share) for share in (OUTLIERS, 1 - OUTLIERS)]
    low, high = map(float, np.partition(some, places)[places])
    beyond, all_known = (high - low) * BEYOND, samples[known]
    return max(float(all_known.min()), low - beyond), min(float(all_known.max()), high + beyond)


def stretch(samples: Samples, low: float, high: float) -> NDArray[np.uint8]:
    """Map ``low``..``high`` to 0..255, and clip values outside. NaN and infinity become black."""
    if samples.dtype == np.uint16:
        return _make_table(low, high)[samples]
    shades = (samples.astype(np.float64) - low) * (255 / (high - low) if high > low else 0.0)
    return np.rint(np.clip(np.nan_to_num(shades, posinf=0), 0, 255)).astype(np.uint8)


@lru_cache(maxsize=4)
def _make_table(low: float, high: float) -> NDArray[np.uint8]:
    return stretch(np.arange(1 << 16), low, high)


def _read_samples(picture: Any) -> Samples:
    """Return the samples [h, w] of a picture for which ``is_deep_grey`` is true."""
    name, plane = picture.format.name, picture.planes[0]
    step = 2 if name.startswith("ya") else 1  # skips alpha
    size = -(-picture.format.components[0].bits // 16) * 2
    kind = f"{'>' if name.endswith('be') else '<'}{'f' if 'f' in name else 'u'}{size}"
    rows = lines_of(plane, kind)[:, : plane.width * step : step]
    return rows.astype(rows.dtype.newbyteorder("="))


def choose_for_video(pictures: Sequence[Any], setting: str | GreyRange) -> GreyRange | None:
    """Choose the range of a video from some of its pictures. None: the whole range."""
    greys = [_read_samples(one).reshape(-1) for one in pictures if is_deep_grey(one)]
    some = np.concatenate([one[:: max(1, one.size * len(greys) // SAMPLED) | 1] for one in greys])
    chosen = choose_range(some, pictures[0].format.components[0].bits, setting)
    is_whole = chosen is None or not chosen.note or chosen[:2] == (0, 1)
    return None if is_whole or setting == FULL else chosen


def to_bgr_of_grey(picture: Any, range: GreyRange, width: int, height: int) -> Image:
    shades = stretch(_read_samples(picture), range.low, range.high)
    if shades.shape != (height, width):
        shades = cv2.resize(shades, (width, height), interpolation=cv2.INTER_CUBIC)
    image: Image = cv2.cvtColor(shades, cv2.COLOR_GRAY2BGR)
    return image


def follow(last: GreyRange | None, chosen: GreyRange | None) -> GreyRange | None:
    """Move a camera's ``last`` range a little towards the one ``chosen`` for its next picture."""
    if last is None or chosen is None:
        return chosen
    low, high = (a + (b - a) * FOLLOW_SHARE for a, b in zip(last[:2], chosen[:2], strict=True))
    return GreyRange(low, high, last.note)
