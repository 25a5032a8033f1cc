"""Read the sample format from TIFF headers, and the time of a photo from EXIF, a similar header."""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from detector.core.errors.holding import name_to_open

STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two: BigTIFF
MOST_PAGES = 10_000
# Numbers of tags.
SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 254, 256, 257, 258, 259, 262
ORIENTATION, SAMPLES, PLANES, ALPHA, FORMAT = 274, 277, 284, 338, 339
EXIF_WITHIN = 1 << 17  # bytes searched at either end of a file; a JPEG's EXIF has at most 65,533
EXIF, TAKEN, ZONE_OF_TAKEN = 34665, 36867, 36881
SIZES = {1: "B", 2: "B", 3: "H", 4: "I", 13: "I", 16: "Q"}  # maps a type to struct's letter
REDUCED = 1  # bit of SUBFILE: a smaller copy of another page
# libtiff decodes these compressions or reports an error. For others, it returns a black picture.
COMPRESSIONS: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 32766, 32771, 32773, 32809, 32909, 32946)
COMPRESSIONS += (34661, 34676, 34677, 34887, 34925, 50000, 50001)
PARTS, MOST_PARTS = (273, 279, 324, 325), 1 << 16  # positions and lengths of strips and tiles
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, CIE_LAB, ICC_LAB = 0, 1, 2, 8, 9
SEPARATE, SIGNED, FLOAT = 2, 2, 3
ASSOCIATED, UNASSOCIATED = 1, 2  # ALPHA: whether colours are already multiplied by it
Tags = dict[int, tuple[tuple[int, ...], int]]


@dataclass(frozen=True, slots=True)
class Tiff:
    """The header of a file's first page. ``pages``: number of pages, without reduced copies."""

    tags: Tags  # maps a tag to its first values and their position in the file
    pages: int

    def __getitem__(self, tag: int) -> int:
        return self.tags.get(tag, ((int(tag != ALPHA),), 0))[0][0]

    @property
    def is_known(self) -> bool:
        return self[COMPRESSION] in COMPRESSIONS

    def lacks_a_plane(self, length: int) -> bool:
        """Return whether a file of ``length`` bytes lacks a colour plane. cv2 would not notice."""
        parts = [self.tags[tag][0] for tag in PARTS if tag in self.tags]
        ends = (sum(part) for part in zip(*parts, strict=False))  # position plus length
        return self[PLANES] == SEPARATE and max(ends, default=0) > length


def read_tiff(data: bytes) -> Tiff | None:
    """Read the header; None if it is not a TIFF, or its header is truncated or damaged."""
    if not data.startswith(STARTS):
        return None
    try:
        return _read(data)
    except (struct.error, IndexError, KeyError):
        return None


def _read(data: bytes) -> Tiff | None:
    reader = _TiffReader(data)
    first, following = reader.page(reader.first)
    pages, seen = 1, {reader.first}
    while following and following not in seen and pages < MOST_PAGES:
        seen.add(following)
        page, following = reader.page(following)
        pages += not page.get(SUBFILE, ((0,), 0))[0][0] & REDUCED
    return Tiff(first, pages) if {WIDTH, HEIGHT} <= first.keys() else None


def write_numbers(data: bytes, numbers: dict[int, int]) -> bytes:
    """Return a copy of the file. ``numbers`` maps positions to new values of two bytes."""
    copy, order = bytearray(data), "<" if data[:1] == b"I" else ">"
    for at, number in numbers.items():
        struct.pack_into(f"{order}H", copy, at, number)
    return bytes(copy)


_EXIF_OF_JPEG = b"Exif\0\0"
_EXIF_BEGINS = re.compile(rb"(?:Exif\0\0|eXIf|EXIF....|\A)(?=II\*\0|MM\0\*)", re.DOTALL)


def read_taken(path: str) -> str | None:
    """Return the time in a photo's EXIF in ISO 8601, with the offset from UTC if stated."""
    with suppress(OSError), open(name_to_open(path), "rb") as file:
        head = file.read(EXIF_WITHIN)
        if head.startswith(b"\xff\xd8"):
            return _find_taken(head[head.find(_EXIF_OF_JPEG) :]) if _EXIF_OF_JPEG in head else None
        file.seek(max(os.path.getsize(path) - EXIF_WITHIN, 0))
        return _find_taken(head) or _find_taken(file.read())  # WebP stores EXIF after the pixels
    return None


def _find_taken(data: bytes) -> str | None:
    match = _EXIF_BEGINS.search(data)
    exif = data[match.end() :] if match else b""
    try:
        reader = _TiffReader(exif)
        tags = reader.page(reader.page(reader.first)[0][EXIF][0][0])[0]
        at, zone_at = tags[TAKEN][1], tags.get(ZONE_OF_TAKEN, ((), len(exif)))[1]
        text, zone = (exif[begin : begin + 19].decode("latin-1") for begin in (at, zone_at))
        taken = datetime.strptime(text, "%Y:%m:%d %H:%M:%S").isoformat()
    except (struct.error, IndexError, KeyError, ValueError):
        return None
    offset = re.match(r"[+-]\d\d:\d\d", zone)
    return taken + offset[0] if offset else taken


class _TiffReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._order = "<" if data[:1] == b"I" else ">"
        self._big = 43 in (data[2], data[3])
        (self.first,) = self._take("Q" if self._big else "I", 8 if self._big else 4)

    def _take(self, letters: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + letters, self._data, at)

    def page(self, at: int) -> tuple[Tags, int]:
        """Return the page's tags, and the position of the next page or 0."""
        count_as, entry, offset = ("Q", 20, "Q") if self._big else ("H", 12, "I")
        (count,) = self._take(count_as, at)
        at += struct.calcsize(f"={count_as}")
        tags = {}
        for place in range(at, at + entry * min(count, 1 << 12), entry):
            tag, kind = self._take("HH", place)
            (number,) = self._take(offset, place + 4)
            if kind not in SIZES or not number:
                continue
            letters = f"{min(number, MOST_PARTS if tag in PARTS else 4)}{SIZES[kind]}"
            values_at = place + 4 + struct.calcsize(f"={offset}")
            if number * struct.calcsize(f"={SIZES[kind]}") > struct.calcsize(f"={offset}"):
                (values_at,) = self._take(offset, values_at)
            try:
                tags[tag] = self._take(letters, values_at), values_at
            except struct.error:
                continue  # omit a damaged tag
        return tags, self._take(offset, at + entry * count)[0]
