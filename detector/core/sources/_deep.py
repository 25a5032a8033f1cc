"""Convert pictures with more than 8 bits per sample, as from thermal or scientific cameras.

The range that the samples use is mapped to 0..255 (``_grey.py``). For integers, this range is
0..2^n - 1, with the likely depth n (10 bits, 12 bits, ...). For floats, it is 0..1 or 0..2^n - 1.
For low-contrast grey, it goes from the lowest to the highest sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detector.core.sources import _tiff
from detector.core.sources._cv2 import cv2
from detector.core.sources._grey import Samples, bits_in_use, choose_range, stretch
from detector.core.sources._picture_size import PNG
from detector.core.sources._tiff import Tiff, read_tiff, write_numbers
from detector.core.sources.base import GreyRange
from detector.core.types import Image

# Signatures of other formats that may have more than 8 bits: PGM, PPM, PAM, PFM, JPEG 2000.
_MAYBE_DEEP = (b"P2", b"P3", b"P5", b"P6", b"P7", b"Pf", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
GreySetting = str | GreyRange
ALL_16_BITS = "its 16-bit samples are reduced to 8 bits, also in output pictures"


def decode_deep(data: NDArray[np.uint8], setting: GreySetting) -> tuple[Image | None, str] | None:
    """Return u8 BGR [h, w, 3] and a note on the conversion; None for plain 8-bit samples."""
    head = data[:32].tobytes()
    if head.startswith(PNG):
        return _decode_png(data, setting) if len(head) > 24 and head[24] > 8 else None
    if head.startswith(_MAYBE_DEEP):
        return _decode_maybe_deep(data, setting)
    tiff = read_tiff(data.tobytes()) if head[:2] in (b"II", b"MM") else None
    return None if tiff is None else _decode_tiff(data, tiff, setting)


def _decode_png(data: NDArray[np.uint8], setting: GreySetting) -> tuple[Image | None, str]:
    # With these flags, cv2 rotates the picture by its EXIF and discards alpha.
    stored = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if stored is None:
        return None, ""
    image, note = to_8_bits(np.asarray(stored), setting, cut=True)
    return image, note or ALL_16_BITS


def _decode_maybe_deep(data: NDArray[np.uint8], setting: GreySetting) -> tuple[Image, str] | None:
    """Decode a picture and stretch its range; None if cv2's own conversion is right."""
    stored = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if stored is None or stored.dtype.itemsize < 2:
        return None
    samples: Samples = np.asarray(stored)
    is_pnm = data[0] == ord("P")  # cv2 keeps only the upper 8 bits, even if those are unused
    capacity = 16 if is_pnm or samples.dtype.kind == "f" else bits_in_use(samples, 16)
    image, note = to_8_bits(samples, setting, capacity=capacity)
    return (image, note) if note else None


def _decode_tiff(
    data: NDArray[np.uint8], tiff: Tiff, setting: GreySetting
) -> tuple[Image | None, str]:
    numbers, is_half = {}, tiff[_tiff.FORMAT] == _tiff.FLOAT and tiff[_tiff.BITS] == 16
    is_lab = tiff[_tiff.PHOTOMETRIC] in (_tiff.CIE_LAB, _tiff.ICC_LAB) and tiff[_tiff.SAMPLES] > 2
    if tiff[_tiff.ALPHA]:
        # With the ALPHA tag, cv2 would multiply colours by alpha, which it does not do for PNG.
        numbers[tiff.tags[_tiff.ALPHA][1]] = 0
    if is_half:  # cv2 reads no 16-bit floats, so their bits are read as integers
        formats, at = tiff.tags[_tiff.FORMAT]
        numbers |= {at + 2 * number: 1 for number in range(len(formats))}
    if tiff[_tiff.ORIENTATION] > 1:  # cv2 would turn each tile separately, so we use ``_turn``
        numbers[tiff.tags[_tiff.ORIENTATION][1]] = 1
    if is_lab:  # cv2's own conversion turns white into yellow
        numbers[tiff.tags[_tiff.PHOTOMETRIC][1]] = _tiff.RGB
    if numbers:
        data = np.frombuffer(write_numbers(data.tobytes(), numbers), np.uint8)
    image, note = _decode_page(data, tiff, setting, is_half=is_half)
    if image is None:
        return None, ""
    if is_lab:
        has_sign = tiff[_tiff.PHOTOMETRIC] == _tiff.CIE_LAB
        image[..., :2] ^= 128 * has_sign  # the channels b and a
        image = np.asarray(cv2.cvtColor(image[..., ::-1], cv2.COLOR_Lab2BGR))
    note = note or (ALL_16_BITS if tiff[_tiff.BITS] == 16 and not is_lab else "")
    notes = [note] if note else []
    bands = tiff[_tiff.SAMPLES] - (tiff[_tiff.ALPHA] == _tiff.UNASSOCIATED)
    if tiff[_tiff.PHOTOMETRIC] <= _tiff.BLACK_IS_ZERO and bands > 1:
        is_colour = bands == 3 and tiff[_tiff.BITS] > 8  # cv2 reads these as colours
        notes.append(f"its {bands} bands are {'read as RGB' if is_colour else 'cut to one'}")
    if tiff.pages > 1:
        notes.append(
            f"it has {tiff.pages} pages, and only the first is used; save the others as files"
        )
    return _turn(image, tiff[_tiff.ORIENTATION]), "; ".join(notes)


def _turn(image: Image, orientation: int) -> Image:
    image = image.transpose(1, 0, 2) if 5 <= orientation <= 8 else image
    down, across = (-1 if orientation in those else 1 for those in ((3, 4, 7, 8), (2, 3, 6, 7)))
    return np.ascontiguousarray(image[::down, ::across])


def _decode_page(
    data: NDArray[np.uint8], tiff: Tiff, setting: GreySetting, *, is_half: bool
) -> tuple[Image | None, str]:
    """Decode one page. ``is_half``: its integers are the bits of 16-bit floats."""
    is_float, is_separate = tiff[_tiff.FORMAT] == _tiff.FLOAT, tiff[_tiff.PLANES] == _tiff.SEPARATE
    if (
        tiff[_tiff.BITS] <= 8
        and tiff[_tiff.FORMAT] != _tiff.SIGNED
        and tiff[_tiff.ALPHA] != _tiff.ASSOCIATED
    ):
        image: Image | None = cv2.imdecode(data, cv2.IMREAD_COLOR)
        return image, ""
    if is_separate and tiff[_tiff.SAMPLES] > 1 and is_float:
        return None, ""  # cv2 mixes up the planes
    if is_separate and tiff[_tiff.BITS] > 8:
        # cv2 mixes up separate planes if it reads more than their upper 8 bits.
        image = cv2.imdecode(data, cv2.IMREAD_COLOR)
        if image is None:
            return None, ""
        # the lowest 16-bit values that round to these 8 bits
        lowest = np.maximum(image.astype(np.int32) * 257 - 128, 0)
        return to_8_bits(lowest.astype(np.uint16), setting)
    stored = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if stored is None:
        return None, ""
    samples: Samples = np.asarray(stored)
    if is_half:
        samples = samples.view(np.float16).astype(np.float32)
    if samples.ndim == 3 and samples.shape[2] > 3:
        colours, alpha = samples[..., :3], samples[..., 3:]
        samples = _undo_alpha(colours, alpha) if tiff[_tiff.ALPHA] == _tiff.ASSOCIATED else colours
    if samples.dtype == np.uint8:
        return _convert_to_bgr(samples), ""
    inverted = tiff[_tiff.PHOTOMETRIC] == _tiff.WHITE_IS_ZERO and samples.ndim == 2
    return to_8_bits(samples, setting, inverted=inverted)


def _undo_alpha(colours: Samples, alpha: Samples) -> Samples:
    """Undo the multiplication of colours by ``alpha``."""
    if colours.dtype.kind == "f":
        return np.where(alpha > 0, colours / np.where(alpha > 0, alpha, 1), 0)
    most = np.iinfo(colours.dtype).max
    divided = colours.astype(np.float64) * most / np.maximum(alpha, 1)
    return np.minimum(np.rint(divided), most).astype(colours.dtype)


def to_8_bits(
    samples: Samples,
    setting: GreySetting,
    *,
    cut: bool = False,
    inverted: bool = False,
    capacity: int | None = None,
) -> tuple[Image, str]:
    """Convert samples [h, w] or [h, w, 3] to u8 BGR; also return a note on the conversion.

    ``cut``: truncate colours of 16 bits, as cv2 does for PNG; by default, round them. ``inverted``:
    the largest sample is black. ``capacity``: bits per sample, if fewer than the type has.
    """
    grey = samples
    if samples.ndim == 3 and not (samples[..., 1:] != samples[..., :1]).any():
        grey = samples[..., 0]
    bits = samples.dtype.itemsize * 8 - (samples.dtype.kind == "i")  # without the sign bit
    chosen = choose_range(grey, capacity or bits, setting)
    if chosen is None:
        samples = 65535 - samples.astype(np.int64) if inverted else samples
        by_shift = cut or samples.ndim == 2
        upper = samples >> 8 if by_shift else (samples.astype(np.uint32) + 128) // 257
        return _convert_to_bgr(upper.astype(np.uint8)), ""
    eight = stretch(grey, chosen.low, chosen.high)
    missing = samples.size - int(np.isfinite(samples).sum())
    lost = f"; {missing} samples are NaN or infinite, and drawn black" if missing else ""
    return _convert_to_bgr(255 - eight if inverted else eight), chosen.note + lost


def _convert_to_bgr(eight: NDArray[np.uint8]) -> Image:
    if eight.ndim == 3 and eight.shape[2] == 3:
        return np.ascontiguousarray(eight)
    grey = eight if eight.ndim == 2 else eight[..., 0]
    bgr: Image = cv2.cvtColor(np.ascontiguousarray(grey), cv2.COLOR_GRAY2BGR)
    return bgr
