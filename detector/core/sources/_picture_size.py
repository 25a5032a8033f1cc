"""The size that a picture claims, read before decoding, and whether such a size can be decoded
here.

A JPEG of one kilobyte can claim 32767x32767 pixels. libjpeg fills missing parts with grey, so
decoding it takes 6 GB of memory and most of a minute. For a PNG, cv2 allocates as much memory as
its next chunk claims. Files are recognised by content, so all of cv2's formats are covered here.
"""

from __future__ import annotations

import re
import struct

from detector.core.errors.machine import too_much
from detector.core.sources._tiff import COMPRESSION, HEIGHT, STARTS, WIDTH, read_tiff

MOST_PIXELS = 1 << 28  # 16384x16384, 0.8 GB as BGR; also the largest WebP
# Bytes of memory per pixel during decoding: 9 for a progressive JPEG in 4:4:4 (6 for coefficients,
# 3 for BGR), 6 to 7 for others, measured with OpenCV 5.0; plus 3 for another picture in flight.
PIXEL_BYTES = 12
PNG = b"\x89PNG\r\n\x1a\n"
Size = tuple[int, int]  # width, height


def claimed_size(data: bytes) -> Size | None:
    """Return width and height; None if the header is truncated or the format is unknown here."""
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
    """Return whether each chunk of a PNG has its stated length, to the last one."""
    at = len(PNG)
    while len(data) >= at + 12:
        (length,) = struct.unpack_from(">I", data, at)
        kind, at = data[at + 4 : at + 8], at + 12 + length  # its length, kind and checksum
        if kind == b"IEND":
            return bool(len(data) >= at)
    return False


def _png(data: bytes) -> Size:
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg(data: bytes) -> Size | None:
    """Return the size in the first frame header, past segments with thumbnails."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a table, not a frame
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + length
    return None


def _webp(data: bytes) -> Size | None:
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


def _bmp(data: bytes) -> Size:
    (header,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(width), abs(height)  # a negative height means rows from the top


def _tiff(data: bytes) -> Size | None:
    found = read_tiff(data)
    return None if found is None else (found[WIDTH], found[HEIGHT])


def _gif(data: bytes) -> Size:
    """Return the size of the screen on which each picture is placed."""
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _sun(data: bytes) -> Size:
    width, height = struct.unpack_from(">II", data, 4)
    return width, height


def _jpeg_2000(data: bytes) -> Size | None:
    """Return the size in the first SIZ segment: its right and lower edges."""
    at = data.find(b"\xff\x4f\xff\x51")
    if at < 0:
        return None
    width, height = struct.unpack_from(">II", data, at + 8)
    return width, height


_NETPBM = re.compile(rb"P[1-6Ff](?:\s+|#[^\n]*\n)+(\d+)(?:\s+|#[^\n]*\n)+(\d+)")
_PAM = re.compile(rb"\b(WIDTH|HEIGHT)\s+(\d+)")
_RADIANCE = re.compile(rb"[-+]Y\s+(\d+)\s+[-+]X\s+(\d+)")
_HEADER = 4096  # bytes that hold a text header
_LONGEST = 12  # digits; longer numbers are too large anyway


def _netpbm(data: bytes) -> Size | None:
    found = _NETPBM.match(data[:_HEADER])
    return (_number(found[1]), _number(found[2])) if found else None


def _pam(data: bytes) -> Size | None:
    sides = {key: _number(value) for key, value in _PAM.findall(data[:_HEADER])}
    return (sides[b"WIDTH"], sides[b"HEIGHT"]) if len(sides) == 2 else None


def _radiance(data: bytes) -> Size | None:
    found = _RADIANCE.search(data[:_HEADER])
    return (_number(found[2]), _number(found[1])) if found else None


def _number(digits: bytes) -> int:
    return int(digits) if len(digits) <= _LONGEST else MOST_PIXELS + 1


_FORMATS = (
    (b"\xff\xd8", _jpeg),
    (PNG, _png),
    (b"RIFF", _webp),
    (b"BM", _bmp),
    *((start, _tiff) for start in STARTS),
    (b"GIF8", _gif),
    (b"\x59\xa6\x6a\x95", _sun),
    (b"\xff\x4f\xff\x51", _jpeg_2000),
    (b"\0\0\0\x0cjP  ", _jpeg_2000),
    (b"P7", _pam),
    (b"P", _netpbm),
    (b"#?", _radiance),
)
