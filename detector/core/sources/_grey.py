"""Grey samples of more than 8 bits: which of them is drawn black, and which white.

A thermal camera stores counts or hundredths of a kelvin, of which a scene uses a hundredth: drawn
over all that 16 bits can hold, it is one shade of grey. So a range of which little is in use is
stretched: for each picture by itself, for a video once, by a sample of its pictures, and for a
camera slowly, as its pictures change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.sources._cv2 import cv2
from detector.core.sources.base import AUTO, FULL, GreyRange
from detector.core.types import Image

Samples = NDArray[Any]
# Bits that cameras have, and the whole numbers in which they are stored.
DEPTHS = (8, 10, 12, 14, 16, 24, 32)
OVERSHOOT = 2.0  # floats of 0..1 go beyond 1 by so much, where they were sharpened or enlarged
# A range is narrow where less than this share of it is in use: of what the samples can hold, and of
# a depth that is guessed from the largest one.
NARROW, NARROW_GUESSED = 0.1, 0.25
LEAST_LEVELS = 8  # in fewer there is noise alone
OUTLIERS = 0.001  # share of the samples at either end that may be dead or hot pixels
BEYOND = 1 / 16  # of what is in use: ends that lie no further out are no outliers
LOOKED_AT = 1 << 18  # samples of a picture, of which ends are found
FOLLOWED = 0.05  # share of its way to the ends of a camera's next picture
_GREY = re.compile(r"(?:gray|ya)f?(?:9|\d\d)(?:le|be)")


def choose_range(samples: Samples, held: int, wanted: str | GreyRange = AUTO) -> GreyRange | None:
    """None: all that they can hold, which are ``held`` bits of integers."""
    if isinstance(wanted, GreyRange):
        return wanted
    if wanted == FULL:
        return None
    low, high = find_ends(samples)
    if low < 0 or (samples.dtype.kind == "f" and high > 2**16):
        return GreyRange(low, high, describe_mapping(low, high))
    most, share = _nominal(samples, held)
    if not high - low < share * most or (samples.dtype.kind != "f" and high - low < LEAST_LEVELS):
        return None
    said = (
        f"its grey samples use {low:.6g} to {high:.6g} of 0 to {most:.6g}, so they were stretched "
        "to the full range (--grey-range full prevents it)"
    )
    return GreyRange(low, high, said) if high > low else None


def describe_mapping(low: float, high: float) -> str:
    return f"its samples, {low:g} to {high:g}, were mapped to black to white"


def _nominal(samples: Samples, held: int) -> tuple[float, float]:
    """The largest number that is meant, and the share below which little of it is in use."""
    if samples.dtype.kind == "f":
        largest = float(np.max(samples, where=np.isfinite(samples), initial=0))
        if largest <= OVERSHOOT:
            return 1.0, NARROW
        return float(2 ** depth_of(largest) - 1), NARROW_GUESSED
    bits = bits_in_use(samples, held)
    return 2**bits - 1, NARROW if bits == held else NARROW_GUESSED


def depth_of(largest: float) -> int:
    """Bits that a camera had whose largest float this is. Floats of 16 bits round 4095 to 4096."""
    return next((depth for depth in DEPTHS if largest <= 2**depth), DEPTHS[-1])


def bits_in_use(samples: Samples, held: int) -> int:
    """The depth that integers had before they were stored in ``held`` bits."""
    used = int(samples.max()).bit_length()
    # With one bit less it is all of the range, if of a dark picture.
    if used >= held - 1 or (held == 16 and _was_widened(samples)):
        return held
    return min(held, next(depth for depth in DEPTHS if depth >= used))


def _was_widened(samples: Samples) -> bool:
    """Whether 8 bits were spread over 16 when it was stored, so that the whole range is meant in a
    dark picture, too: the lower byte of all samples is 0, or as the upper one."""
    return not int(np.bitwise_or.reduce(samples, axis=None)) & 255 or not (samples % 257).any()


def find_ends(samples: Samples) -> tuple[float, float]:
    """The lowest and the largest sample but for a few outliers."""
    known = np.isfinite(samples)
    if not known.any():
        return 0.0, 0.0
    lowest, largest = samples[known].min(), samples[known].max()
    some = samples.reshape(-1)[:: max(1, samples.size // LOOKED_AT) | 1]
    some = some[np.isfinite(some)]
    places = [round((some.size - 1) * share) for share in (OUTLIERS, 1 - OUTLIERS)]
    low, high = map(float, np.partition(some, places)[places] if some.size else (lowest, largest))
    beyond = (high - low) * BEYOND
    return max(float(lowest), low - beyond), min(float(largest), high + beyond)


def stretch(samples: Samples, low: float, high: float) -> NDArray[np.uint8]:
    """0..255 of ``low`` to ``high``; what lies beyond is black or white."""
    if samples.dtype == np.uint16:
        return _table(low, high)[samples]
    shades = (samples.astype(np.float64) - low) * (255 / (high - low) if high > low else 0.0)
    return np.rint(np.clip(np.nan_to_num(shades, posinf=0), 0, 255)).astype(np.uint8)


@lru_cache(maxsize=4)
def _table(low: float, high: float) -> NDArray[np.uint8]:
    return stretch(np.arange(1 << 16), low, high)


# ----------------------------------------------------------------------
# Pictures of PyAV.


def is_deep_grey(picture: Any) -> bool:
    return _GREY.fullmatch(picture.format.name) is not None


def read_samples(picture: Any) -> Samples:
    """[h, w] of a picture that ``is_deep_grey``."""
    name, plane = picture.format.name, picture.planes[0]
    each = 2 if name.startswith("ya") else 1
    size = -(-picture.format.components[0].bits // 16) * 2
    kind = f"{'>' if name.endswith('be') else '<'}{'f' if 'f' in name else 'u'}{size}"
    rows = np.frombuffer(plane, kind).reshape(plane.height, -1)[:, : plane.width * each : each]
    return rows.astype(rows.dtype.newbyteorder("="))


def choose_for_video(pictures: Sequence[Any], wanted: str | GreyRange) -> GreyRange | None:
    """``choose_range`` for a video that has these among its pictures."""
    seen = [read_samples(one) for one in pictures if is_deep_grey(one)]
    held = pictures[0].format.components[0].bits
    each = max(1, LOOKED_AT // len(seen))
    samples = np.concatenate([one.reshape(-1)[:: max(1, one.size // each) | 1] for one in seen])
    chosen = choose_range(samples, held, wanted)
    most = _nominal(samples, held)[0]
    if chosen is not None or wanted == FULL or most in (1.0, 2**held - 1):
        return chosen
    # As of pictures: what 12 bits in 16 hold is dark.
    said = f"its grey samples use 0 to {most:.6g} of {held} bits, so they were stretched"
    return GreyRange(0.0, most, f"{said} to the full range (--grey-range full prevents it)")


def to_bgr_of_grey(samples: Samples, range: GreyRange, width: int, height: int) -> Image:
    """[height, width, 3] u8."""
    shades = stretch(samples, range.low, range.high)
    if shades.shape != (height, width):
        shades = cv2.resize(shades, (width, height), interpolation=cv2.INTER_CUBIC)
    image: Image = cv2.cvtColor(shades, cv2.COLOR_GRAY2BGR)
    return image


class FollowedRange:
    """The range of a camera, whose pictures follow each other. ``said``: about the first."""

    def __init__(self, wanted: str | GreyRange = AUTO) -> None:
        self.said = ""
        self._wanted = wanted
        self._now: GreyRange | None = None

    def of(self, picture: Any) -> GreyRange | None:
        """For the next picture; None: all that its samples can hold."""
        if self._wanted == FULL:
            return None
        most = _nominal(read_samples(picture), picture.format.components[0].bits)[0]
        next_one = choose_for_video([picture], self._wanted) or GreyRange(0.0, most)
        now = self._now or next_one
        low, high = (
            before + (after - before) * FOLLOWED
            for before, after in ((now.low, next_one.low), (now.high, next_one.high))
        )
        self.said, self._now = self.said or next_one.said, GreyRange(low, high)
        return self._now
