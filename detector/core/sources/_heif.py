"""Decode HEIF and AVIF pictures (ISO/IEC 23008-12) whose boxes state that they are grids of tiles,
or are cropped, rotated or mirrored."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from detector.core.errors import SourceError
from detector.core.errors.holding import bad_tags, name_to_open
from detector.core.sources._bgr import LIMITED, to_bgr
from detector.core.sources._picture_size import why_too_large
from detector.core.types import Image

DESCRIBED_WITHIN = 1 << 20  # bytes at the start of a file that contain its list of items
CODED = (b"hvc1", b"av01", b"avc1", b"jpeg", b"vvc1", b"j2k1")  # kinds of coded pictures
CROPPED, TURNED, MIRRORED = b"clap", b"irot", b"imir"
GRID = b"grid"


class HeifItem(NamedTuple):
    """A picture. ``tiles``: the item numbers of its tiles, row by row. ``turns``: the (kind,
    values) of each crop, rotation and mirroring, in order."""

    width: int
    height: int
    tiles: tuple[int, ...]
    turns: tuple[tuple[bytes, bytes], ...]
    is_ours: bool  # we must decode it, since cv2 and FFmpeg decode it wrongly


class _ByteReader:
    """Reads numbers and boxes. ``take`` raises IndexError past the end, to detect wrong counts."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    def take(self, length: int) -> int:
        self._at += length
        if self._at > len(self._data):
            raise IndexError(self._at)
        return int.from_bytes(self._data[self._at - length : self._at], "big")

    def boxes(self) -> list[tuple[bytes, bytes]]:
        boxes = []
        while self._at + 8 <= len(self._data) and (size := self.take(4)) >= 8:
            end = self._at - 4 + size
            boxes.append((self._data[self._at : self._at + 4], self._data[self._at + 4 : end]))
            self._at = end
        return boxes


def read_item(head: bytes, path: str) -> HeifItem | None:
    """Find the primary picture in ``head``, the beginning of a file. Return None if it has no
    ``meta`` box. Raises SourceError."""
    boxes = dict(_ByteReader(head[:DESCRIBED_WITHIN]).boxes())
    if b"meta" not in boxes:
        return None
    with suppress(IndexError, KeyError):
        meta = dict(_ByteReader(boxes[b"meta"], 4).boxes())
        primary = _ByteReader(meta[b"pitm"], 4).take(4 if meta[b"pitm"][0] else 2)
        kind = _find_item_kind(meta[b"iinf"], primary)
        if kind in CODED or kind == GRID:
            return _read_primary(meta, primary, kind)
    raise SourceError(f"{path}: its tiles cannot be put together")


def _find_item_kind(iinf: bytes, number: int) -> bytes:
    for _, item in _ByteReader(iinf, 8 if iinf[0] else 6).boxes():
        width = 4 if item[0] > 2 else 2
        if _ByteReader(item, 4).take(width) == number:
            return item[6 + width : 10 + width]
    raise KeyError(number)


def _read_primary(meta: dict[bytes, bytes], primary: int, kind: bytes) -> HeifItem:
    iref = meta[b"iref"] if kind == GRID else bytes(4)
    width = 4 if iref[0] else 2
    tiles: tuple[int, ...] = (primary,) if kind in CODED else ()
    for name, content in _ByteReader(iref, 4).boxes():
        reference = _ByteReader(content)
        if name == b"dimg" and reference.take(width) == primary:
            tiles = tuple(reference.take(width) for _ in range(reference.take(2)))
    properties = dict(_ByteReader(meta[b"iprp"]).boxes())
    known = [(b"", b""), *_ByteReader(properties[b"ipco"]).boxes()]
    own = [known[at] for at in _list_properties(properties[b"ipma"], primary)]
    size = _ByteReader(dict(own)[b"ispe"], 4)
    turns = tuple(entry for entry in own if entry[0] in (CROPPED, TURNED, MIRRORED) and entry[1])
    is_grey = bool(dict(own).get(b"av1C", bytes(4))[2] & 0x10)
    is_ours = kind == GRID or is_grey or CROPPED in dict(turns)
    return HeifItem(size.take(4), size.take(4), tiles, turns, is_ours)


def _list_properties(ipma: bytes, number: int) -> list[int]:
    entries, width, mask = _ByteReader(ipma, 4), 1, 0x7F
    if ipma[3] & 1:
        width, mask = 2, 0x7FFF
    for _ in range(entries.take(4)):
        item = entries.take(4 if ipma[0] else 2)
        properties = [entries.take(width) & mask for _ in range(entries.take(1))]
        if item == number:
            return properties
    raise KeyError(number)


def decode_tiles(path: str, grid: HeifItem) -> Image:
    """Decode to upright u8 BGR [h, w, 3]. Raises SourceError if tiles do not fill the grid."""
    decoded: dict[int, Image] = {}
    reformatter, columns = VideoReformatter(), 1
    with suppress(av.error.FFmpegError), av.open(name_to_open(path), **bad_tags()) as container:
        streams = [stream for stream in container.streams.video if stream.id in grid.tiles]
        width, height = max(((tile.width, tile.height) for tile in streams), default=(1, 1))
        columns, rows = -(-grid.width // width), -(-grid.height // height)
        if columns * rows == len(grid.tiles) and not why_too_large(columns * width, rows * height):
            for packet in container.demux(*streams):
                for frame in packet.decode():
                    tile = to_bgr(reformatter, frame, width, height).copy()
                    if frame.format.name.startswith("gray") and frame.color_range == LIMITED:
                        tile = _LIMITED_TO_FULL[tile]  # swscale assumes that grey has full range
                    decoded[packet.stream.id] = tile
    if not decoded or decoded.keys() != set(grid.tiles):
        raise SourceError(f"{path}: its tiles cannot be put together")
    tiles = [decoded[number] for number in grid.tiles]
    lines = [np.hstack(tiles[at : at + columns]) for at in range(0, len(tiles), columns)]
    return turn(np.vstack(lines)[: grid.height, : grid.width], grid.turns)


def turn(image: Image, turns: Iterable[tuple[bytes, bytes]]) -> Image:
    for kind, values in turns:
        if kind == CROPPED:
            image = _crop(image, values)
        else:
            turned = kind == TURNED
            image = np.rot90(image, values[0] & 3) if turned else np.flip(image, values[0] & 1)
    return np.ascontiguousarray(image)


def _crop(image: Image, clap: bytes) -> Image:
    """Crop the picture. Ignore a crop with invalid numbers."""
    with suppress(struct.error, ZeroDivisionError):
        numbers = struct.unpack(">IIIIiIiI", clap)
        for axis, at in ((1, 0), (0, 2)):
            whole, length = image.shape[axis], Fraction(*numbers[at : at + 2])
            offset = Fraction(*numbers[at + 4 : at + 6])  # from the picture's centre to the crop's
            begin, size = round((whole - length) / 2 + offset), round(length)
            if begin >= 0 < size <= whole - begin:
                image = image.take(range(begin, begin + size), axis)
    return image


_LIMITED_TO_FULL = np.clip(np.rint((np.arange(256) - 16.0) * 255 / 219), 0, 255).astype(np.uint8)
