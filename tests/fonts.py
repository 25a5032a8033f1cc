"""Make fonts whose letters are bars of known width, so that tests can recognize drawn text.
``needs_libass`` skips a test if ffmpeg is missing or lacks libass."""

import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from detector.core.stages import labels

EM = 1000  # size of the em square, in units
CAPITAL = 700  # height of every bar, in units


def make_font(widths: dict[str, int], em: int = EM) -> bytes:
    """Make a TrueType font. Each letter is a solid bar of the width in ``widths``, in units,
    followed by a gap of 100 units. A missing letter is a bar of 500."""
    bars = [500, *(widths[char] for char in sorted(widths))]
    glyphs = [_bar(width) for width in bars]
    offsets = [sum(map(len, glyphs[:i])) for i in range(len(glyphs) + 1)]
    tables = {
        b"cmap": _cmap(sorted(map(ord, widths))),
        b"glyf": b"".join(glyphs),
        # version, revision, checksum, magic, flags, em, created, modified, box, style, smallest
        # size, direction, long offsets, format
        b"head": struct.pack(
            ">IIIIHHqqhhhhHHhhh",
            *(0x10000, 0x10000, 0, 0x5F0F3CF5, 3, em, 0, 0),
            *(0, 0, max(bars), CAPITAL, 0, 8, 2, 1, 0),
        ),
        b"hhea": struct.pack(
            ">IhhhHhhhhhhhhhhhH", 0x10000, 800, -200, 0, 2000, *(0,) * 11, len(bars)
        ),
        b"hmtx": b"".join(struct.pack(">Hh", width + 100, 0) for width in bars),
        b"loca": b"".join(struct.pack(">I", offset) for offset in offsets),
        b"maxp": struct.pack(">IHHHHHHHHHHHHHH", 0x10000, len(bars), 4, 1, *(0,) * 11),
    }
    place = 12 + 16 * len(tables)
    head = struct.pack(">IHHHH", 0x10000, len(tables), 64, 2, 16 * len(tables) - 64)
    body = b""
    for tag, table in tables.items():
        head += struct.pack(">4sIII", tag, 0, place + len(body), len(table))
        body += table + bytes(-len(table) % 4)
    return head + body


def _bar(width: int) -> bytes:
    box = struct.pack(">hhhhh", 1, 0, 0, width, CAPITAL)
    flags = struct.pack(">HH4B", 3, 0, 1, 1, 1, 1)
    data = box + flags + struct.pack(">4h4h", 0, 0, width, 0, 0, CAPITAL, 0, -CAPITAL)
    return data + bytes(-len(data) % 4)


def _cmap(codes: list[int]) -> bytes:
    """Return a character map in format 12, with one group per letter."""
    groups = b"".join(struct.pack(">III", code, code, i) for i, code in enumerate(codes, 1))
    return (
        struct.pack(">HHHHI", 0, 1, 3, 10, 12)
        + struct.pack(">HHIII", 12, 0, 16 + len(groups), 0, len(codes))
        + groups
    )


@contextmanager
def opencv_4() -> Iterator[None]:
    """Simulate OpenCV 4, which can draw only ASCII text by itself."""
    caches = (labels.drawable, labels._opencv_can_write)
    try:
        with patch.object(labels, "MANY_SCRIPTS", False):
            for cached in caches:
                cached.cache_clear()
            yield
    finally:
        for cached in caches:
            cached.cache_clear()


def _has_libass() -> bool:
    if shutil.which("ffmpeg") is None:
        return False
    filters = subprocess.run(["ffmpeg", "-v", "error", "-filters"], capture_output=True, text=True)
    return " subtitles " in filters.stdout


needs_libass = pytest.mark.skipif(not _has_libass(), reason="machine: no ffmpeg with libass")
