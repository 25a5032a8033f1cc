"""Find out, without decoding, what a key frame promises to a decoder that starts there.

Containers mark three kinds of packets as key frames; we tell these apart by the packet's bytes. IDR
picture: pictures stored after it never refer to pictures stored before it. I picture of an open
GOP: its leading pictures (stored after it, shown before it) refer to earlier pictures. Periodic
refresh: a decoder that starts there has a complete picture only some frames later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from detector.core.sources.video._fields import BitReader
from detector.core.sources.video._packets import H264_SLICES, PictureRule

H264_IDR, H264_SEI, H264_OTHER_SLICES = 5, 6, (1, 2)
H264_PARAMETERS = (7, 8, 13, 15)  # sequence and picture parameter sets, and their extensions
HEVC_IDR, HEVC_CRA, HEVC_PARAMETERS = (19, 20), 21, (32, 33, 34)
HEVC_BREAKS = (16, 17, 18, 36, 37)  # BLA pictures, ends of a sequence and of the stream
RECOVERY_POINT = 6  # payload type of a SEI message
AV1_SEQUENCE, AV1_FRAMES = 1, (3, 6)  # types of OBU
LONGEST_SIZE = 8  # bytes of the number that states an OBU's size


class Promise(Enum):
    CLEAN = "all pictures stored after it can be decoded"
    OPEN = "all pictures except its leading ones can be decoded"
    NONE = "nothing"


class KeyReader:
    """Judges the key frames of a stream. Give it the packets in order."""

    def __init__(self, codec: str, rule: PictureRule, extradata: bytes) -> None:
        self._codec, self._rule, self._extradata = codec, rule, extradata
        self._parameters: set[bytes] | None = None  # parameter sets in the first packet
        # ``promise`` judges a key frame. For MPEG-1, -2 and -4 it returns CLEAN, which the caller
        # must change to OPEN if leading pictures follow.
        self.promise: Callable[[Any], Promise] = {
            "h264": self._judge_h264,
            "hevc": self._judge_hevc,
            "vp9": _judge_vp9,
            "av1": _judge_av1,
        }.get(codec, lambda _: Promise.CLEAN)
        self._find_parameters: Callable[[Any], Iterator[bytes]] = {
            "h264": self._find_h264_parameters,
            "hevc": self._find_hevc_parameters,
            "av1": _find_av1_parameters,
        }.get(codec, lambda _: iter(()))

    def changes_parameters(self, packet: Any) -> bool:
        """Return whether a packet contains parameter sets (picture size, ...) that are neither in
        the extradata nor in the first packet."""
        if packet.has_sidedata("new_extradata"):
            return True
        sets = {unit for unit in self._find_parameters(packet) if unit not in self._extradata}
        if self._parameters is None:
            self._parameters = sets
        return not sets <= self._parameters

    def is_unreferenced(self, packet: Any) -> bool:
        """Return whether no picture refers to an H.264 packet's picture; False if unknown."""
        if self._codec != "h264":
            return False
        slices = [first for first in self._rule.nal_units(packet) if first & 31 in H264_SLICES]
        return bool(slices) and all(first >> 5 & 3 == 0 for first in slices)

    def _judge_h264(self, packet: Any) -> Promise:
        is_open = False
        for unit in self._rule.fields.units(packet):
            kind = unit[0] & 31 if unit else 0
            if kind == H264_IDR:
                return Promise.CLEAN
            is_open |= kind == H264_SEI and _is_exact_recovery(unit)
            if kind in H264_OTHER_SLICES:
                break
        return Promise.OPEN if is_open else Promise.NONE

    def _judge_hevc(self, packet: Any) -> Promise:
        for first in self._rule.nal_units(packet):
            kind = first >> 1 & 63
            if kind in HEVC_IDR:
                return Promise.CLEAN
            if kind == HEVC_CRA:
                return Promise.OPEN
        return Promise.NONE

    def _find_h264_parameters(self, packet: Any) -> Iterator[bytes]:
        units = self._rule.fields.units(packet)
        return (unit for unit in units if unit and unit[0] & 31 in H264_PARAMETERS)

    def _find_hevc_parameters(self, packet: Any) -> Iterator[bytes]:
        units = self._rule.fields.units(packet)
        return (unit for unit in units if unit and unit[0] >> 1 & 63 in HEVC_PARAMETERS)


def _is_exact_recovery(unit: bytes) -> bool:
    """Return whether a SEI unit states an exact recovery after 0 frames, without a broken link."""
    data = unit[1:].replace(b"\0\0\3", b"\0\0")
    at = 0
    while at + 2 < len(data):
        numbers = []
        for _ in range(2):  # payload type, size: each is a sum of bytes, all 255 except the last
            number = 0
            while at < len(data) and data[at] == 255:
                number, at = number + 255, at + 1
            number, at = number + (data[at] if at < len(data) else 0), at + 1
            numbers.append(number)
        kind, size = numbers
        if kind == RECOVERY_POINT:
            bits = BitReader(data[at : at + size])
            try:
                frames, exact, broken = bits.golomb(), bits.take(1), bits.take(1)
            except IndexError:
                return False
            return frames == 0 and bool(exact) and not broken
        at += size
    return False


def _judge_vp9(packet: Any) -> Promise:
    bits = int.from_bytes(memoryview(packet)[:2], "big")
    at = 12 if bits >> 12 & 3 != 3 else 11  # after marker and profile, as in ``_packets``
    shows_existing, is_no_key = bits >> at - 1 & 1, bits >> at - 2 & 1
    return Promise.NONE if shows_existing or is_no_key else Promise.CLEAN


def _judge_av1(packet: Any) -> Promise:
    for kind, unit in _split_av1(bytes(memoryview(packet))):
        if kind in AV1_FRAMES:
            # bits: show_existing_frame, frame_type (2 bits, 0: key frame), show_frame
            is_shown_key = bool(unit) and unit[0] >> 4 == 1
            return Promise.CLEAN if is_shown_key else Promise.NONE
    return Promise.NONE


def _find_av1_parameters(packet: Any) -> Iterator[bytes]:
    units = _split_av1(bytes(memoryview(packet)))
    return (unit for kind, unit in units if kind == AV1_SEQUENCE)


def _split_av1(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        header = data[at]
        at += 2 if header & 4 else 1  # 4: the header has an extension byte
        size = len(data) - at
        if header & 2:
            size = 0
            for number, byte in enumerate(data[at : at + LONGEST_SIZE]):
                size |= (byte & 127) << 7 * number
                at += 1
                if byte < 128:
                    break
        yield header >> 3 & 15, data[at : at + size]
        at += size
