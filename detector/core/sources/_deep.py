"""Pictures whose samples are not 8 bits each, as cameras of industry, heat and science write them.

A sample of 12 bits in 16 uses a sixteenth of its range, and is black to whoever drops the lower 8
bits. So what is used is stretched to 0..255: integers by the bits that the largest one needs,
floats by what their range says. Whole ranges stay as cv2 converts them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.sources._cv2 import cv2
from detector.core.sources._picture_size import PNG
from detector.core.sources._tiff import ASSOCIATED, FLOAT, Tiff, read_tiff
from detector.core.types import Image

# Bits that cameras have, and the whole numbers in which they are stored.
DEPTHS = (8, 10, 12, 14, 16, 24, 32)
NEARLY_WHOLE = 15  # bits of 16 in use: it is all of its range, if a dark picture
OVERSHOOT = 2.0  # floats of 0..1 go beyond 1 by so much, where they were sharpened or enlarged
Samples = NDArray[Any]


def decode_deep(data: NDArray[np.uint8]) -> tuple[Image | None, str] | None:
    """u8 BGR [h, w, 3] and a note on what was done to the samples; None for plain 8-bit samples."""
    head = data[:32].tobytes()
    if head.startswith(PNG):
        return _decode_png(data) if len(head) > 24 and head[24] > 8 else None
    tiff = read_tiff(data.tobytes()) if head[:2] in (b"II", b"MM") else None
    return None if tiff is None else _decode_tiff(data, tiff)


def _decode_png(data: NDArray[np.uint8]) -> tuple[Image | None, str]:
    # Turned by its EXIF; alpha is dropped.
    stored = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if stored is None:
        return None, ""
    return to_8_bits(np.asarray(stored), cut=True)


def _decode_tiff(data: NDArray[np.uint8], tiff: Tiff) -> tuple[Image | None, str]:
    plain = data
    if tiff.alpha:
        # cv2 multiplies by an alpha that is called one, and by no other; PNG's it drops.
        plain = data.copy()
        plain[tiff.alpha_at : tiff.alpha_at + 2] = 0
    if is_half := tiff.is_float and tiff.bits == 16:
        # cv2 knows no floats of 16 bits, but integers, and does not touch them.
        plain = plain.copy()
        for at in tiff.formats_at:
            plain[at : at + 2] = plain[at : at + 2] == FLOAT
    pages = (
        f"it has {tiff.pages} pages, and only the first is used; save the others as files"
        if tiff.pages > 1
        else ""
    )
    image, said = _decode_page(plain, tiff, is_half=is_half)
    return image, "; ".join(filter(None, (said, pages)))


def _decode_page(data: NDArray[np.uint8], tiff: Tiff, *, is_half: bool) -> tuple[Image | None, str]:
    """``is_half``: its integers are floats of 16 bits."""
    if tiff.bits <= 8 and not tiff.is_signed and tiff.alpha != ASSOCIATED:
        found: Image | None = cv2.imdecode(data, cv2.IMREAD_COLOR)
        return found, ""
    if tiff.separate and not tiff.is_float and tiff.bits > 8:
        # cv2 reads the upper 8 bits of such planes, and mixes them up where it is asked for all.
        found = cv2.imdecode(data, cv2.IMREAD_COLOR)
        if found is None:
            return None, ""
        lowest = np.maximum(found.astype(np.int32) * 257 - 128, 0)  # that are rounded to it
        return to_8_bits(lowest.astype(np.uint16))
    stored = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if stored is None:
        return None, ""
    samples: Samples = np.asarray(stored)
    if is_half:
        samples = samples.view(np.float16).astype(np.float32)
    if samples.ndim == 3 and samples.shape[2] > 3:
        colours, alpha = samples[..., :3], samples[..., 3:]
        samples = _undo_alpha(colours, alpha) if tiff.alpha == ASSOCIATED else colours
    if samples.dtype == np.uint8:
        return _as_bgr(samples), ""
    inverted = tiff.white_is_zero and samples.ndim == 2
    return to_8_bits(samples, inverted=inverted)


def _undo_alpha(colours: Samples, alpha: Samples) -> Samples:
    """Colours that were multiplied by ``alpha``, as they were before."""
    if colours.dtype.kind == "f":
        return np.where(alpha > 0, colours / np.where(alpha > 0, alpha, 1), 0)
    most = np.iinfo(colours.dtype).max
    divided = colours.astype(np.float64) * most / np.maximum(alpha, 1)
    return np.minimum(np.rint(divided), most).astype(colours.dtype)


def to_8_bits(samples: Samples, *, cut: bool = False, inverted: bool = False) -> tuple[Image, str]:
    """u8 BGR of samples [h, w] or [h, w, 3], and what was done where a range was stretched.

    ``cut``: whole ranges of 16 bits lose their lower 8, as in cv2's PNG; else they are rounded.
    ``inverted``: the largest number that its bits can hold is black.
    """
    if samples.dtype.kind == "f":
        return _from_floats(samples)
    lowest, largest = int(samples.min()), int(samples.max())
    if lowest < 0:
        return _stretch(samples.astype(np.float64), lowest, largest)
    held, used = samples.dtype.itemsize * 8, largest.bit_length()
    bits = next(depth for depth in DEPTHS if depth >= used)
    whole = held == 16 and (used >= NEARLY_WHOLE or _was_widened(samples))
    bits = held if whole else bits
    most = 2**bits - 1
    if inverted:
        samples = (most - samples.astype(np.int64)).astype(samples.dtype)
    if whole:
        by_shift = cut or samples.ndim == 2
        eight = samples >> 8 if by_shift else (samples.astype(np.uint32) + 128) // 257
    else:
        eight = _scaled(samples, most)
    said = ""
    if not whole and bits < held and largest:
        said = (
            f"its samples use only {bits} of {held} bits, so they were stretched to the full range"
        )
    return _as_bgr(eight.astype(np.uint8)), said


def _was_widened(samples: Samples) -> bool:
    """Whether 8 bits were spread over 16 when it was stored, so that the whole range is meant in a
    dark picture, too: the lower byte of all samples is 0, or as the upper one."""
    return not int(np.bitwise_or.reduce(samples, axis=None)) & 255 or not (samples % 257).any()


def _scaled(samples: Samples, most: int) -> Samples:
    """0 to ``most`` as 0 to 255."""
    if samples.dtype.itemsize > 2:
        return np.rint(samples * (255 / most))
    table = np.rint(np.arange(most + 1) * (255 / most)).astype(np.uint8)
    scaled: Samples = table[samples]
    return scaled


def _from_floats(samples: Samples) -> tuple[Image, str]:
    finite = np.isfinite(samples)
    if not finite.any():
        return _as_bgr(np.zeros(samples.shape, np.uint8)), "its samples are all NaN or infinite"
    missing = samples.size - int(finite.sum())
    clean = np.where(finite, samples, 0).astype(np.float64)
    lowest, largest = float(samples[finite].min()), float(samples[finite].max())
    if lowest < 0 or largest > 2**16:
        image, said = _stretch(clean, lowest, largest)
    else:
        most = 1.0 if largest <= OVERSHOOT else float(2 ** _depth_of(largest) - 1)
        image = _as_bgr(np.rint(np.minimum(clean * (255 / most), 255)).astype(np.uint8))
        said = f"its samples are floats; 0 to {most:g} were mapped to black to white"
    if missing:
        said += f"; {missing} samples are NaN or infinite, and drawn black"
    return image, said


def _depth_of(largest: float) -> int:
    # Floats of 16 bits round 4095 to 4096.
    return next(depth for depth in DEPTHS if largest <= 2**depth)


def _stretch(samples: Samples, lowest: float, largest: float) -> tuple[Image, str]:
    scale = 255 / (largest - lowest) if largest > lowest else 0.0
    eight = np.rint((np.maximum(samples, lowest) - lowest) * scale).astype(np.uint8)
    return _as_bgr(eight), (
        f"its samples, {lowest:g} to {largest:g}, were mapped to black to white"
    )


def _as_bgr(eight: NDArray[np.uint8]) -> Image:
    if eight.ndim == 3 and eight.shape[2] == 3:
        return np.ascontiguousarray(eight)
    grey = eight if eight.ndim == 2 else eight[..., 0]
    found: Image = cv2.cvtColor(np.ascontiguousarray(grey), cv2.COLOR_GRAY2BGR)
    return found
