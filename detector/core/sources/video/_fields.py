"""Find packets that contain one field of an interlaced picture. Two fields make one frame.

FFmpeg silently discards a field without a partner, or invents the missing field. Only H.264 and
MPEG-2 store fields in separate packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

HEAD = 4096  # bytes of a packet that are searched for its first slice
SLICE_HEAD = 32  # bytes of a slice that contain the numbers we read
SLICES, SPS = (1, 2, 5), 7
# Profiles whose parameter set contains chroma format, depths and scaling lists.
HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)


class Field(NamedTuple):
    """A field. ``picture``: a number that both fields of a frame share."""

    bottom: bool
    picture: int

    def completes(self, first: Field) -> bool:
        return self.bottom != first.bottom and self.picture == first.picture


class FieldReader:
    """Reads the fields of a stream. Call ``read`` for all packets in order."""

    def __init__(self, codec: str, extradata: bytes, length_bytes: int) -> None:
        """``length_bytes``: width of the length before a NAL unit; 0: units follow start codes."""
        mpeg = ("mpeg1video", "mpeg2video")
        self._read = self._read_h264 if codec == "h264" else _read_mpeg2 if codec in mpeg else None
        self._length_bytes = length_bytes
        self._sequence: _Sequence | None = None
        self.knows = codec != "h264"  # H.264 needs a sequence parameter set
        if codec == "h264":
            self._read_parameters(
                _list_sets(extradata) if length_bytes else _split_units(extradata)
            )

    def read(self, packet: Any) -> Field | None:
        return self._read(packet) if self._read is not None else None

    def _read_h264(self, packet: Any) -> Field | None:
        units = self.units(packet)
        for unit in units:
            if not unit:
                continue
            if unit[0] & 31 == SPS:
                self._read_parameters([unit])
            elif unit[0] & 31 in SLICES:
                return None if self._sequence is None else _read_field(unit, self._sequence)
        return None

    def _read_parameters(self, units: Any) -> None:
        for unit in units:
            if unit and unit[0] & 31 == SPS:
                try:
                    self._sequence = _Sequence.read(unit)
                    self.knows = True
                except (IndexError, ValueError):  # damaged: keep the previous set
                    continue

    def units(self, packet: Any) -> Iterator[bytes]:
        data = memoryview(packet)
        if not self._length_bytes:
            yield from _split_units(bytes(data[:HEAD]))
            return
        at, size = 0, self._length_bytes
        while at + size < len(data):
            length = int.from_bytes(data[at : at + size], "big")
            yield bytes(data[at + size : at + size + min(length, HEAD)])
            at += size + length


class _Sequence(NamedTuple):
    """The values of a sequence parameter set that are needed to read a slice."""

    frames_only: bool
    number_bits: int  # width of frame_num
    separate_planes: bool

    @staticmethod
    def read(unit: bytes) -> _Sequence:
        """Parse the set. Raises IndexError if it is truncated, ValueError if it is invalid."""
        bits = BitReader(unit[1:])
        profile = bits.take(8)
        bits.take(16)  # constraints, level
        bits.golomb()  # its id
        separate_planes = False
        if profile in HIGH_PROFILES:
            chroma = bits.golomb()
            separate_planes = chroma == 3 and bool(bits.take(1))
            bits.golomb(), bits.golomb()  # depths
            bits.take(1)
            if bits.take(1):
                for number in range(12 if chroma == 3 else 8):
                    if bits.take(1):
                        _skip_scaling_list(bits, 16 if number < 6 else 64)
        number_bits = bits.golomb() + 4
        order = bits.golomb()
        if order == 0:
            bits.golomb()
        elif order == 1:
            bits.take(1)
            bits.golomb(), bits.golomb()
            for _ in range(min(bits.golomb(), 256)):
                bits.golomb()
        bits.golomb()  # reference frames
        bits.take(1)
        bits.golomb(), bits.golomb()  # width and height, in macroblocks
        if number_bits > 16 or order > 2:
            raise ValueError("not a sequence parameter set")
        return _Sequence(bool(bits.take(1)), number_bits, separate_planes)


def _skip_scaling_list(bits: BitReader, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            code = bits.golomb()
            change = (code + 1) // 2 if code % 2 else -(code // 2)
            following = (last + change) % 256
        last = following or last


def _read_field(unit: bytes, sequence: _Sequence) -> Field | None:
    if sequence.frames_only:
        return None
    bits = BitReader(unit[1 : 1 + SLICE_HEAD])
    try:
        bits.golomb(), bits.golomb(), bits.golomb()  # first macroblock, type, parameter set
        if sequence.separate_planes:
            bits.take(2)
        number = bits.take(sequence.number_bits)
        return Field(bool(bits.take(1)), number) if bits.take(1) else None
    except IndexError:
        return None


def _read_mpeg2(packet: Any) -> Field | None:
    """Return an MPEG-2 packet's field; None if it contains a whole frame or both fields."""
    data = bytes(packet)
    at = data.find(b"\0\0\1\0")  # start code of a picture
    if at < 0 or data.find(b"\0\0\1\0", at + 4) >= 0 or len(data) < at + 6:
        return None
    number = int.from_bytes(data[at + 4 : at + 6], "big") >> 6
    at = data.find(b"\0\0\1\xb5", at)
    while at >= 0 and at + 6 < len(data):
        if data[at + 4] >> 4 == 8:  # picture coding extension
            structure = data[at + 6] & 3  # 1 top, 2 bottom, 3 frame
            return Field(structure == 2, number) if structure in (1, 2) else None
        at = data.find(b"\0\0\1\xb5", at + 4)
    return None


def _list_sets(extradata: bytes) -> Iterator[bytes]:
    """Yield the sequence parameter sets of an MP4's ``avcC``."""
    at = 6
    for _ in range(extradata[5] & 31 if len(extradata) > 5 else 0):
        length = int.from_bytes(extradata[at : at + 2], "big")
        yield extradata[at + 2 : at + 2 + length]
        at += 2 + length


def _split_units(data: bytes) -> Iterator[bytes]:
    at = data.find(b"\0\0\1")
    while at >= 0:
        following = data.find(b"\0\0\1", at + 3)
        yield data[at + 3 : following if following >= 0 else len(data)]
        at = following


class BitReader:
    """Reads the bits of a NAL unit's payload in order. Raises IndexError past the end."""

    def __init__(self, data: bytes) -> None:
        plain = data.replace(b"\0\0\3", b"\0\0")  # without the emulation prevention bytes
        self._value, self._left = int.from_bytes(plain, "big"), 8 * len(plain)

    def take(self, count: int) -> int:
        if count > self._left:
            raise IndexError
        self._left -= count
        return self._value >> self._left & (1 << count) - 1

    def golomb(self) -> int:
        """Read an unsigned Exp-Golomb number."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return self.take(zeros) + (1 << zeros) - 1
