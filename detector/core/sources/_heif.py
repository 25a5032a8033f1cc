"""HEIF pictures that are a grid of tiles, as telephones write them (ISO/IEC 23008-12).

PyAV hands out the tiles, one by one; only the file's boxes say how they belong together.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from detector.core.errors import SourceError
from detector.core.errors.holding import bad_tags, name_to_open
from detector.core.sources._bgr import to_bgr
from detector.core.sources._picture_size import why_too_large
from detector.core.types import Image

DESCRIBED_WITHIN = 1 << 20  # bytes from the start, in which a file lists its items
CODED = (b"hvc1", b"av01", b"avc1", b"jpeg", b"vvc1", b"j2k1")  # items that are made of no others


class Grid(NamedTuple):
    """``tiles``: numbers of items, row by row; the picture itself, if it is cut. ``turns``: what is
    done to the picture, in order."""

    width: int
    height: int
    tiles: tuple[int, ...]
    turns: tuple[tuple[bytes, bytes], ...]


class _Bytes:
    """Raises IndexError behind the end, so that no count is believed."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    def take(self, length: int) -> int:
        self._at += length
        if self._at > len(self._data):
            raise IndexError(self._at)
        return int.from_bytes(self._data[self._at - length : self._at], "big")

    def boxes(self) -> list[tuple[bytes, bytes]]:
        """(kind, content) of each box."""
        found = []
        while self._at + 8 <= len(self._data) and (size := self.take(4)) >= 8:
            end = self._at - 4 + size
            found.append((self._data[self._at : self._at + 4], self._data[self._at + 4 : end]))
            self._at = end
        return found


def read_grid(path: str) -> Grid | None:
    """None where the picture is not made of others, and not cut. Raises SourceError and OSError."""
    with open(name_to_open(path), "rb") as file:
        head = file.read(DESCRIBED_WITHIN)
    boxes = dict(_Bytes(head).boxes())
    if head[4:8] != b"ftyp" and b"meta" not in boxes:
        return None
    with suppress(IndexError, KeyError):
        meta = dict(_Bytes(boxes[b"meta"], 4).boxes())
        primary = _Bytes(meta[b"pitm"], 4).take(4 if meta[b"pitm"][0] else 2)
        if (kind := _kind_of(meta[b"iinf"], primary)) in CODED:
            return _read(meta, primary, (primary,)) if b"clap" in meta[b"iprp"] else None
        if kind == b"grid":
            return _read(meta, primary, ())
    raise SourceError(f"{path}: its tiles cannot be put together")


def _kind_of(iinf: bytes, wanted: int) -> bytes:
    for _, item in _Bytes(iinf, 8 if iinf[0] else 6).boxes():
        wide = 4 if item[0] > 2 else 2
        if _Bytes(item, 4).take(wide) == wanted:
            return item[6 + wide : 10 + wide]
    raise KeyError(wanted)


def _read(meta: dict[bytes, bytes], primary: int, tiles: tuple[int, ...]) -> Grid:
    """``tiles``: if they are known."""
    references = meta[b"iref"] if not tiles else bytes(4)
    wide = 4 if references[0] else 2
    for kind, content in _Bytes(references, 4).boxes():
        reference = _Bytes(content)
        if kind == b"dimg" and reference.take(wide) == primary:
            tiles = tuple(reference.take(wide) for _ in range(reference.take(2)))
    properties = dict(_Bytes(meta[b"iprp"]).boxes())
    known = [(b"", b""), *_Bytes(properties[b"ipco"]).boxes()]
    own = [known[at] for at in _list_properties(properties[b"ipma"], primary)]
    size = _Bytes(dict(own)[b"ispe"], 4)
    turns = tuple((kind, data) for kind, data in own if kind in (b"irot", b"imir", b"clap"))
    return Grid(size.take(4), size.take(4), tiles, turns)


def _list_properties(ipma: bytes, wanted: int) -> list[int]:
    entries, wide = _Bytes(ipma, 4), 2 if ipma[3] & 1 else 1
    for _ in range(entries.take(4)):
        number = entries.take(4 if ipma[0] else 2)
        own = [entries.take(wide) & (0x7FFF if wide > 1 else 0x7F) for _ in range(entries.take(1))]
        if number == wanted:
            return own
    raise KeyError(wanted)


def decode_grid(path: str, grid: Grid) -> Image:
    """u8 BGR [h, w, 3], upright. Raises SourceError where a tile is missing, or they do not fit."""
    found: dict[int, Image] = {}
    reformatter, columns = VideoReformatter(), 1
    with suppress(av.error.FFmpegError), av.open(name_to_open(path), **bad_tags()) as container:
        streams = [stream for stream in container.streams.video if stream.id in grid.tiles]
        width, height = max(((one.width, one.height) for one in streams), default=(1, 1))
        columns, rows = -(-grid.width // width), -(-grid.height // height)
        if columns * rows == len(grid.tiles) and not why_too_large(columns * width, rows * height):
            for packet in container.demux(*streams):
                for one in packet.decode():
                    found[packet.stream.id] = to_bgr(reformatter, one, width, height).copy()
    if not found or found.keys() != set(grid.tiles):
        raise SourceError(f"{path}: its tiles cannot be put together")
    tiles = [found[number] for number in grid.tiles]
    lines = [np.hstack(tiles[at : at + columns]) for at in range(0, len(tiles), columns)]
    image = np.vstack(lines)[: grid.height, : grid.width]
    for kind, how in grid.turns:
        if kind == b"clap":
            image = _cut(image, how)
        else:
            image = np.rot90(image, how[0] & 3) if kind == b"irot" else np.flip(image, how[0] & 1)
    if not image.size:
        raise SourceError(f"{path}: its tiles cannot be put together")
    return np.ascontiguousarray(image)


def _cut(image: Image, clap: bytes) -> Image:
    """``clap``: width, height and the middle's distance from the picture's, each a fraction.
    Nothing if that lies elsewhere."""
    numbers = np.frombuffer(clap[:32].ljust(32, b"\0"), ">i4").astype(float)
    width, height, x, y = numbers[::2] / np.where(numbers[1::2] == 0, 1, numbers[1::2])
    left, top = (image.shape[1] - width) / 2 + x, (image.shape[0] - height) / 2 + y
    ends = round(left), round(top), round(left + width), round(top + height)
    if min(ends) < 0 or ends[2] > image.shape[1] or ends[3] > image.shape[0]:
        return image[:0]
    return image[ends[1] : ends[3], ends[0] : ends[2]]
