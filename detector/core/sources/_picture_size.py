"""Before a picture is decoded, read the size that it claims, and refuse a size that is too large.

A JPEG of one kilobyte can claim 32767x32767 pixels. Since libjpeg fills missing parts with grey,
decoding this file takes 6 GB of memory and most of a minute. For a PNG, cv2 allocates as much
memory as the next chunk claims. cv2 recognizes files by content, so we check all formats of cv2.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from detector.core.errors.machine import too_much
from detector.core.sources._tiff import COMPRESSION, HEIGHT, STARTS, WIDTH, read_tiff

MOST_PIXELS = 1 << 28  # 16384x16384, 0.8 GB as BGR; also the largest WebP
# Bytes of memory per pixel, measured with OpenCV 5.0: decoding a progressive 4:4:4 JPEG takes 9 (6
# for coefficients, 3 for BGR), other files 6 to 7. A second picture in memory takes 3 more.
PIXEL_BYTES = 12
PNG = b"\x89PNG\r\n\x1a\n"
Size = tuple[int, int]  # width, height


def claimed_size(data: bytes) -> Size | None:
    """Return width and height; None if the header is truncated or not of a known format."""
    try:
        for start, read in _FORMATS:
            if data.startswith(start):
                return read(data)
    except (struct.error, IndexError):
        pass
    return None


def why_not_decoded(data: bytes) -> str | None:
    if (size := claimed_size(data)) is not None and (why := why_too_large(*size, len(data))):
        return why
    if data.startswith(PNG) and not _has_all_chunks(data):
        return "the picture is truncated or damaged"
    tiff = read_tiff(data) if data.startswith(STARTS) else None
    if tiff is not None and not tiff.is_known:
        return f"a TIFF of the unsupported compression {tiff[COMPRESSION]}"
    if tiff is not None and tiff.lacks_a_plane(len(data)):
        return "the picture is truncated or damaged"
    return None


def why_too_large(width: int, height: int, stored: int = 0) -> str | None:
    if width * height > MOST_PIXELS:
        return f"{width}x{height} pixels, more than the {MOST_PIXELS // 10**6} million allowed"
    if (needed := too_much(width * height * PIXEL_BYTES + stored)) is not None:
        return f"{width}x{height} pixels need {needed}"
    return None


def _has_all_chunks(data: bytes) -> bool:
    at = len(PNG)
    while len(data) >= at + 12:
        (length,) = struct.unpack_from(">I", data, at)
        kind, at = data[at + 4 : at + 8], at + 12 + length  # 12: length, kind and checksum
        if kind == b"IEND":
            return bool(len(data) >= at)
    return False


def _at(position: int, layout: str) -> Callable[[bytes], Size]:
    """Return a function that reads width and height from a fixed position."""

    def read(data: bytes) -> Size:
        width, height = struct.unpack_from(layout, data, position)
        return width, height

    return read


def _read_jpeg(data: bytes) -> Size | None:
    """Return the size in the first frame header, after segments that may contain thumbnails."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame header
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + length
    return None


def _read_webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _read_bmp(data: bytes) -> Size:
    (header,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(width), abs(height)  # a negative height means that the top row is first


def _read_tiff(data: bytes) -> Size | None:
    tiff = read_tiff(data)
    return None if tiff is None else (tiff[WIDTH], tiff[HEIGHT])


def _read_jpeg_2000(data: bytes) -> Size | None:
    """Return the right and the lower edge, from the first SIZ segment, as width and height."""
    at = data.find(b"\xff\x4f\xff\x51")
    if at < 0:
        return None
    width, height = struct.unpack_from(">II", data, at + 8)
    return width, height


_NETPBM = re.compile(rb"P[1-6Ff](?:\s+|#[^\n]*\n)+(\d+)(?:\s+|#[^\n]*\n)+(\d+)")
_PAM = re.compile(rb"\b(WIDTH|HEIGHT)\s+(\d+)")
_RADIANCE = re.compile(rb"[-+]Y\s+(\d+)\s+[-+]X\s+(\d+)")
_HEADER = 4096  # longest text header, in bytes
_LONGEST = 12  # digits; longer numbers are above MOST_PIXELS


def _read_netpbm(data: bytes) -> Size | None:
    match = _NETPBM.match(data[:_HEADER])
    return (_parse_number(match[1]), _parse_number(match[2])) if match else None


def _read_pam(data: bytes) -> Size | None:
    sides = {key: _parse_number(value) for key, value in _PAM.findall(data[:_HEADER])}
    return (sides[b"WIDTH"], sides[b"HEIGHT"]) if len(sides) == 2 else None


def _read_radiance(data: bytes) -> Size | None:
    match = _RADIANCE.search(data[:_HEADER])
    return (_parse_number(match[2]), _parse_number(match[1])) if match else None


def _parse_number(digits: bytes) -> int:
    return int(digits) if len(digits) <= _LONGEST else MOST_PIXELS + 1


_FORMATS = (
    (b"\xff\xd8", _read_jpeg),
    (PNG, _at(16, ">II")),
    (b"RIFF", _read_webp),
    (b"BM", _read_bmp),
    *((start, _read_tiff) for start in STARTS),
    (b"GIF8", _at(6, "<HH")),  # the logical screen, which contains all pictures
    (b"\x59\xa6\x6a\x95", _at(4, ">II")),  # Sun raster
    (b"\xff\x4f\xff\x51", _read_jpeg_2000),
    (b"\0\0\0\x0cjP  ", _read_jpeg_2000),
    (b"P7", _read_pam),
    (b"P", _read_netpbm),
    (b"#?", _read_radiance),
)
