"""Check whether a video file is as long as its own structure says, and whether that structure is
intact: sizes and the index count, not the durations in headers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from detector.core.errors.holding import open_object
from detector.core.errors.text import counted

CUT_OFF = "the file is shorter than its structure says: its end is missing"
BROKEN = "the structure of the file is damaged"

READ_BYTES = 1 << 16
JOINT = 2  # packets, at most, from the one that the demuxer reports to the one after the gap


class Bytes:
    """The bytes of a file. A memory map would kill the process if the file were shortened."""

    def __init__(self, pread: Callable[[int, int], bytes], size: int) -> None:
        """Read through ``pread``: a length and a position -> bytes."""
        self._pread, self._size = pread, size
        self._start, self._block = 0, b""  # the block read last

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
        """Yield every ``step``-th byte from ``start`` to the end, many at a time."""
        length = READ_BYTES // step * step
        while block := self._pread(length, start):
            yield block[::step]
            start += length


@dataclass(slots=True)
class Demuxed:
    """What a demuxer returned of one stream, from its first packet to its last."""

    packets: int = 0
    keys: int = 0  # key frames among them
    gaps: int = 0  # packets after which data is missing, according to the demuxer
    last_gap: int | None = None  # number of the last of those
    end: int = 0  # end of the last packet, in bytes of the file
    farthest: int = 0  # between a packet's pts and dts, ticks
    first_dts: int | None = None
    last_dts: int = 0

    def add(self, packet: Any) -> None:
        self.packets += 1
        self.keys += packet.is_keyframe
        if packet.is_corrupt:
            self.gaps += 1
            self.last_gap = self.packets
        elif packet.is_keyframe and self.last_gap is not None:
            # In MPEG-TS a counter breaks where data was lost, but also where two recordings were
            # joined, in which case the second begins with a key frame.
            self.gaps -= self.packets - self.last_gap <= JOINT
            self.last_gap = None
        if packet.pos is not None:
            self.end = max(self.end, packet.pos + packet.size)
        if packet.dts is not None:
            self.first_dts = packet.dts if self.first_dts is None else self.first_dts
            self.last_dts = packet.dts
            if packet.pts is not None:
                self.farthest = max(self.farthest, abs(packet.pts - packet.dts))


def find_damage(container: Any, stream: Any, demuxed: Demuxed) -> str:
    """Describe what the file itself shows is missing after the last packet; "" for nothing."""
    is_piped = container.file is not None and open_object(container.name) is None
    if not is_piped and _size_of(container) <= 0:
        return ""
    # What a pipe has sent is gone, and an index at its end was never read.
    found = [] if is_piped else [find_damaged_bytes(container, demuxed)]
    if "mov" in container.format.name and _is_disordered(stream, demuxed):
        found.append("its pictures are stored in an impossible order")
    if demuxed.gaps:
        found.append(f"data is missing in {counted(demuxed.gaps, 'place')}")
    if not is_piped and (lost := _count_unread(container, stream, demuxed)):
        found.append(
            f"{counted(lost, 'picture')} of its index {'is' if lost == 1 else 'are'} missing"
        )
    return "; ".join(filter(None, found))


def find_damaged_bytes(container: Any, demuxed: Demuxed | None = None) -> str:
    """Describe structural damage in the bytes of a file, whatever its packets are."""
    check = _CHECKS.get(container.format.name.split(",")[0])
    if check is None:
        return ""
    try:
        if (stored := open_object(container.name)) is not None:
            return check(Bytes(stored.pread, stored.size), demuxed or Demuxed())
        with open(container.name, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = Bytes(partial(os.pread, file.fileno()), size)
            return check(data, demuxed or Demuxed())
    except IndexError:
        return CUT_OFF  # inside an element's header, or truncated just now


def _size_of(container: Any) -> int:
    stored = open_object(container.name)
    return int(container.size) if stored is None else stored.size


def _is_disordered(stream: Any, demuxed: Demuxed) -> bool:
    """Return whether a picture is stored farther from its place than the file is long."""
    longest = max(demuxed.last_dts - (demuxed.first_dts or 0), stream.duration or 0)
    return demuxed.packets > 2 and demuxed.farthest > 2 * longest


def _count_unread(container: Any, stream: Any, demuxed: Demuxed) -> int:
    """Return the number of index entries without a packet."""
    name: str = container.format.name
    entries = list(stream.index_entries)
    if "mov" in name:
        size = _size_of(container)
        beyond = sum(1 for entry in entries if entry.pos + entry.size > size)
        return max(beyond, sum(1 for entry in entries if entry.size) - demuxed.packets)
    if name == "avi":
        return max(0, sum(1 for entry in entries if entry.size) - demuxed.packets)
    if "matroska" in name:  # it only lists key frames
        return max(0, sum(1 for entry in entries if entry.is_keyframe) - demuxed.keys)
    return 0


# Boxes that reach to the end of a truncated file. Cameras append data that is not a box, so other
# names are ignored.
BOXES = (b"ftyp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"udta", b"sidx", b"mfra")


def _mov(data: Bytes, demuxed: Demuxed) -> str:
    at, size = 0, len(data)
    while at + 8 <= size:
        length = int.from_bytes(data.part(at, at + 4), "big")
        if length == 1:
            length = int.from_bytes(data.part(at + 8, at + 16), "big")
        if length == 0:
            return ""  # up to the end of the file
        if data.part(at + 4, at + 8) not in BOXES:
            return ""
        if length < 8:
            return BROKEN
        at += length
    return CUT_OFF if at > size else ""


def _avi(data: Bytes, demuxed: Demuxed) -> str:
    stated = int.from_bytes(data.part(4, 8), "little")
    # Recorders write 0x7fffffff and more as placeholders.
    return CUT_OFF if stated < 0x7FFFFFFF and 8 + stated > len(data) else ""


EBML, SEGMENT, VOID = 0x1A45DFA3, 0x18538067, 0xEC
TOP_LEVEL = {  # of a segment: the only elements that may follow each other at that level
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


def _matroska(data: Bytes, demuxed: Demuxed) -> str:
    at, end = 0, len(data)
    while at < end:
        element, start, length = _ebml_header(data, at)
        if element == SEGMENT:
            if length is not None and start + length > end:
                return CUT_OFF
            return _segment(data, start, end if length is None else start + length)
        if element not in (EBML, VOID) or length is None:
            return BROKEN
        at = start + length
    return CUT_OFF


def _segment(data: Bytes, at: int, end: int) -> str:
    while at < end:
        element, start, length = _ebml_header(data, at)
        if element == EBML:
            return ""  # a second file was appended
        if element not in TOP_LEVEL:
            return BROKEN
        if length is None:
            return ""  # recorded live: only a reader of its blocks finds the end
        at = start + length
        if at > len(data):
            return CUT_OFF
    return BROKEN if at > end else ""


def _ebml_header(data: Bytes, at: int) -> tuple[int, int, int | None]:
    """Return (id, start of its content, length of its content; None if unknown) of an element."""
    id_bytes = 9 - data.at(at).bit_length()
    element = int.from_bytes(data.part(at, at + id_bytes), "big")
    at += id_bytes
    if at >= len(data):
        return 0, at, None
    size_bytes = 9 - data.at(at).bit_length()  # of an EBML number; its leading one bit is a marker
    unknown = (1 << 7 * size_bytes) - 1
    length = int.from_bytes(data.part(at, at + size_bytes), "big") & unknown
    return element, at + size_bytes, None if length == unknown else length


def _flv(data: Bytes, demuxed: Demuxed) -> str:
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


TS_PACKET_SIZES = ((188, 0), (192, 4), (204, 0))  # bytes, and the position of the sync byte in them
TS_SYNC = b"\x47"


def _mpegts(data: Bytes, demuxed: Demuxed) -> str:
    for packet, sync in TS_PACKET_SIZES:
        for start in range(min(packet, len(data))):  # a recording may begin within a packet
            syncs = data.part(start + sync, start + sync + 5 * packet)[::packet]
            if len(syncs) > 1 and not syncs.strip(TS_SYNC):
                if any(found.strip(TS_SYNC) for found in data.every(start + sync, packet)):
                    return BROKEN
                return CUT_OFF if (len(data) - start) % packet else ""
    return BROKEN


def _gif(data: Bytes, demuxed: Demuxed) -> str:
    at, size = 13 + _colour_table(data.at(10)), len(data)
    while at < size:
        kind = data.at(at)
        if kind == 0x3B:
            return ""
        if kind == 0x21:
            at += 2
        elif kind == 0x2C and at + 10 < size:
            at += 11 + _colour_table(data.at(at + 9))
        else:
            return CUT_OFF if kind == 0x2C else BROKEN
        while at < size and data.at(at):
            at += data.at(at) + 1
        at += 1
    return CUT_OFF


def _colour_table(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _y4m(data: Bytes, demuxed: Demuxed) -> str:
    return CUT_OFF if demuxed.end < len(data) else ""


_CHECKS: dict[str, Callable[[Bytes, Demuxed], str]] = {
    "mov": _mov,
    "avi": _avi,
    "matroska": _matroska,
    "flv": _flv,
    "mpegts": _mpegts,
    "gif": _gif,
    "yuv4mpegpipe": _y4m,
}
