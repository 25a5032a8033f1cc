"""Damaged pictures, alone or among valid ones."""

import struct
import zlib
from random import Random

from tests.attacks.case import Case, Kind, Limits
from tests.attacks.inputs import NULL, PICTURES, content, pictures
from tests.attacks.mutate import damage

CODES = frozenset({0, 3, 7})
LIMITS = Limits(
    memory_mb=3400
)  # decoding the largest picture takes 12 bytes for each of 2^28 pixels
SIDES = (0, 1, 48, 4000, 20000, 32767, 65500, 65535, 2**20, 2**31 - 1, 2**32 - 1)


# These functions write a valid header, but with a width and height that the data does not have.


def _png(data: bytes, width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:]


def _jpg(data: bytes, width: int, height: int) -> bytes:
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height % 65536, width % 65536) + data[at + 4 :]


def _bmp(data: bytes, width: int, height: int) -> bytes:
    return data[:18] + struct.pack("<II", width, height) + data[26:]


def _tif(data: bytes, width: int, height: int) -> bytes:
    """Overwrite width and height, which have the tags 256 and 257 in the first directory."""
    changed = bytearray(data)
    (at,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, at)
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        (tag,) = struct.unpack_from("<H", data, entry)
        if tag in (256, 257):
            struct.pack_into("<HII", changed, entry + 2, 4, 1, width if tag == 256 else height)
    return bytes(changed)


def _webp(data: bytes, width: int, height: int) -> bytes:
    """Write width - 1 and height - 1 into a lossless WebP: 14 bits each, after its signature."""
    at = data.index(b"VP8L") + 9
    (bits,) = struct.unpack_from("<I", data, at)
    sides = (width - 1) % 16384 | (height - 1) % 16384 << 14
    return data[:at] + struct.pack("<I", bits & 0xF0000000 | sides) + data[at + 4 :]


SIZED = {"p.png": _png, "p.jpg": _jpg, "p.webp": _webp, "p.tif": _tif, "p.bmp": _bmp}


def make(random: Random) -> Case:
    name = random.choice(PICTURES)
    if name in SIZED and random.random() < 0.25:
        data = SIZED[name](content(name), random.choice(SIDES), random.choice(SIDES))
    else:
        data = damage(random, content(name), [content(other) for other in PICTURES])
    if random.random() < 0.1:
        name = random.choice(PICTURES)  # a suffix that may contradict the content
    files = {"dots.onnx": content("dots.onnx")}
    argv: list[str] = []
    if random.random() < 0.5:
        files[name], argv = data, [name]
    else:
        files |= {**pictures(), f"pictures/1{name}": data}
        argv = [random.choice(("pictures", "pictures/*"))]
    argv += NULL
    argv += random.choice(
        ([], ["--save", "jsonl"], ["--save", "coco,yolo", "--json"], ["--batch", "2"])
    )
    return Case(files, tuple(argv), CODES, limits=LIMITS)


KIND = Kind("pictures", make, share=8)
