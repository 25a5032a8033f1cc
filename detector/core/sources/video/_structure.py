"""Check whether a video file's structure is intact, and whether the sizes and the index in the file
show that data is missing. Durations in headers are ignored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from detector.core.errors.holding import open_object
from detector.core.errors.text import counted
from detector.core.sources.video._container import Demuxed

CUT_OFF = "the file is shorter than its structure says: its end is missing"
BROKEN = "the structure of the file is damaged"

READ_BYTES = 1 << 16


class FileBytes:
    """Reads a file through ``pread(length, position)``. A memory map would kill the process if the
    file became shorter."""

    def __init__(self, pread: Callable[[int, int], bytes], size: int) -> None:
        self._pread, self._size = pread, size
        self._start, self._block = 0, b""  # the last block read

    def __len__(self) -> int:
        return self._size

    def at(self, position: int) -> int:
        if not self._start <= position < self._start + len(self._block):
            self._start = position
            self._block = self._pread(READ_BYTES, position)
        return self._block[position - self._start]

    def part(self, start: int, stop: int) -> bytes:
        within = start - self._start
        if within >= 0 and stop - self._start <= len(self._block):
            return self._block[within : stop - self._start]
        return self._pread(max(0, stop - start), start)

    def every(self, start: int, step: int) -> Iterator[bytes]:
        """Yield every ``step``-th byte from ``start`` to the end, in large parts."""
        length = READ_BYTES // step * step
        while block := self._pread(length, start):
            yield block[::step]
            start += length


def find_damage(container: Any, stream: Any, demuxed: Demuxed) -> str:
    """Describe the damage to a file whose packets were ``demuxed``; "" if there is none."""
    is_piped = container.file is not None and open_object(container.name) is None
    size = 0 if is_piped else _read_size(container)
    if not is_piped and size <= 0:
        return ""
    # The bytes and the index of a pipe cannot be read again.
    damage = [] if is_piped else [find_damaged_bytes(container)]
    if container.format.name == "yuv4mpegpipe" and demuxed.end < size:
        damage.append(CUT_OFF)
    if "mov" in container.format.name and _is_disordered(stream, demuxed):
        damage.append("its pictures are stored in an impossible order")
    if demuxed.gaps:
        damage.append(f"data is missing in {counted(demuxed.gaps, 'place')}")
    if not is_piped and (lost := _count_unread(container, stream, demuxed)):
        damage.append(
            f"{counted(lost, 'picture')} listed in its index {'is' if lost == 1 else 'are'} missing"
        )
    return "; ".join(filter(None, damage))


def find_damaged_bytes(container: Any) -> str:
    """Describe damage to the structure of a file, without demuxing it; "" if there is none."""
    check = _CHECKS.get(container.format.name.split(",")[0])
    if check is None:
        return ""
    try:
        if (stored := open_object(container.name)) is not None:
            return check(FileBytes(stored.pread, stored.size))
        with open(container.name, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return check(FileBytes(partial(os.pread, file.fileno()), size))
    except IndexError:
        return CUT_OFF  # the file ends in an element's header, or was cut while we were reading


def _read_size(container: Any) -> int:
    stored = open_object(container.name)
    return int(container.size) if stored is None else stored.size


def _is_disordered(stream: Any, demuxed: Demuxed) -> bool:
    """Return whether some packet's pts and dts differ by over twice the video's duration."""
    longest = max(demuxed.last_dts - (demuxed.first_dts or 0), stream.duration or 0)
    return demuxed.packets > 2 and demuxed.largest_offset > 2 * longest


def _count_unread(container: Any, stream: Any, demuxed: Demuxed) -> int:
    """Return the number of index entries without a packet."""
    name: str = container.format.name
    entries = list(stream.index_entries)
    if "mov" in name:
        size = _read_size(container)
        beyond = sum(1 for entry in entries if entry.pos + entry.size > size)
        return max(beyond, sum(1 for entry in entries if entry.size) - demuxed.packets)
    if name == "avi":
        return max(0, sum(1 for entry in entries if entry.size) - demuxed.packets)
    if "matroska" in name:  # its index only lists key frames
        return max(0, sum(1 for entry in entries if entry.is_keyframe) - demuxed.keys)
    return 0


# Boxes whose sizes reveal a truncated file. The check stops at any other name, because cameras
# append data that is not a box.
BOXES = (b"ftyp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"udta", b"sidx", b"mfra")


def _check_mov(data: FileBytes) -> str:
    at, size = 0, len(data)
    while at + 8 <= size:
        length = int.from_bytes(data.part(at, at + 4), "big")
        if length == 1:
            length = int.from_bytes(data.part(at + 8, at + 16), "big")
        if length == 0:
            return ""  # the box extends to the end of the file
        if data.part(at + 4, at + 8) not in BOXES:
            return ""
        if length < 8:
            return BROKEN
        at += length
    return CUT_OFF if at > size else ""


def _check_avi(data: FileBytes) -> str:
    stated = int.from_bytes(data.part(4, 8), "little")
    # Recorders write 0x7fffffff or more as a placeholder.
    return CUT_OFF if stated < 0x7FFFFFFF and 8 + stated > len(data) else ""


EBML, SEGMENT, VOID = 0x1A45DFA3, 0x18538067, 0xEC
TOP_LEVEL = {  # the only elements allowed directly in a segment
    0x114D9B74: "SeekHead",
    0x1549A966: "Info",
    0x1654AE6B: "Tracks",
    0x1F43B675: "Cluster",
    0x1C53BB6B: "Cues",
    0x1941A469: "Attachments",
    0x1043A770: "Chapters",
    0x1254C367: "Tags",
    VOID: "Void",
    0xBF: "CRC-32",
}


def _check_matroska(data: FileBytes) -> str:
    at, end = 0, len(data)
    while at < end:
        element, start, length = _read_ebml_header(data, at)
        if element == SEGMENT:
            if length is not None and start + length > end:
                return CUT_OFF
            return _check_segment(data, start, end if length is None else start + length)
        if element not in (EBML, VOID) or length is None:
            return BROKEN
        at = start + length
    return CUT_OFF


def _check_segment(data: FileBytes, at: int, end: int) -> str:
    while at < end:
        element, start, length = _read_ebml_header(data, at)
        if element == EBML:
            return ""  # a second file was appended
        if element not in TOP_LEVEL:
            return BROKEN
        if length is None:
            return ""  # a live recording: only reading the element's blocks shows where it ends
        at = start + length
        if at > len(data):
            return CUT_OFF
    return BROKEN if at > end else ""


def _read_ebml_header(data: FileBytes, at: int) -> tuple[int, int, int | None]:
    """Return an element's id, and the start and length (None if unknown) of its content. An EBML
    number has as many bytes as its first byte has leading zero bits, plus one."""
    id_bytes = 9 - data.at(at).bit_length()
    element = int.from_bytes(data.part(at, at + id_bytes), "big")
    at += id_bytes
    if at >= len(data):
        return 0, at, None
    size_bytes = 9 - data.at(at).bit_length()
    unknown = (1 << 7 * size_bytes) - 1
    length = int.from_bytes(data.part(at, at + size_bytes), "big") & unknown
    return element, at + size_bytes, None if length == unknown else length


def _check_flv(data: FileBytes) -> str:
    at, size = int.from_bytes(data.part(5, 9), "big") + 4, len(data)
    while at < size:
        if at + 11 > size:
            return CUT_OFF
        tag = 11 + int.from_bytes(data.part(at + 1, at + 4), "big")
        if at + tag + 4 > size:
            return CUT_OFF
        if data.at(at) & 0x1F not in (8, 9, 18):
            return BROKEN
        at += tag + 4
    return ""


TS_PACKET_SIZES = ((188, 0), (192, 4), (204, 0))  # bytes, and the position of the sync byte
TS_SYNC = b"\x47"


def _check_mpegts(data: FileBytes) -> str:
    for packet, sync in TS_PACKET_SIZES:
        for start in range(min(packet, len(data))):  # a recording may begin inside a packet
            syncs = data.part(start + sync, start + sync + 5 * packet)[::packet]
            if len(syncs) > 1 and not syncs.strip(TS_SYNC):
                if any(block.strip(TS_SYNC) for block in data.every(start + sync, packet)):
                    return BROKEN
                return CUT_OFF if (len(data) - start) % packet else ""
    return BROKEN


def _check_gif(data: FileBytes) -> str:
    at, size = 13 + _measure_colour_table(data.at(10)), len(data)
    while at < size:
        kind = data.at(at)
        if kind == 0x3B:
            return ""
        if kind == 0x21:
            at += 2
        elif kind == 0x2C and at + 10 < size:
            at += 11 + _measure_colour_table(data.at(at + 9))
        else:
            return CUT_OFF if kind == 0x2C else BROKEN
        while at < size and data.at(at):
            at += data.at(at) + 1
        at += 1
    return CUT_OFF


def _measure_colour_table(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


_CHECKS: dict[str, Callable[[FileBytes], str]] = {
    "mov": _check_mov,
    "avi": _check_avi,
    "matroska": _check_matroska,
    "flv": _check_flv,
    "mpegts": _check_mpegts,
    "gif": _check_gif,
}
