"""Decide by a packet's first bytes, without decoding, whether it must show a picture.

Not every packet shows one: VP8 and VP9 store hidden pictures; a few bytes may only say that the
last picture repeats; a recording that begins with an open GOP lacks the pictures that its leading
pictures refer to.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detector.core.sources.video._fields import FieldReader

# As in FFmpeg, an MPEG-4 packet of at most this many bytes counts as a repeated picture (N-VOP).
LARGEST_N_VOP = 19
H264_SLICES = range(1, 6)
HEVC_SLICES, HEVC_SKIPPED_LEADING = range(32), (8, 9)  # the latter: RASL pictures
MOST_REFERENCES = 16  # a picture of H.264 or HEVC refers to at most this many pictures
HEAD = 4096  # bytes of a packet that are searched for a slice before the rest is read


class PictureRule:
    """Decides for a stream's packets, in order, whether each must show a picture."""

    def __init__(self, codec: str, extradata: bytes | None, *, at_open_gop: bool = False) -> None:
        """``at_open_gop``: the first packet starts an open GOP."""
        self._shows_picture = {
            "h264": self._shows_h264,
            "hevc": self._shows_hevc,
            "mpeg1video": _shows_mpeg2,
            "mpeg2video": _shows_mpeg2,
            "mpeg4": _shows_mpeg4,
            "vp8": _shows_vp8,
            "vp9": _shows_vp9,
            "av1": _always,
            "mjpeg": _always,
        }.get(codec)
        # Width in bytes of the length before each NAL unit; 0: units follow start codes.
        self._length_bytes = _read_length_bytes(codec, extradata or b"")
        self._stated = codec, extradata or b""
        self._first_key_pts: int | None = None
        self._at_start = True
        self._packets_since_open_gop = int(at_open_gop)

    @cached_property
    def fields(self) -> FieldReader:
        from detector.core.sources.video._fields import FieldReader

        return FieldReader(*self._stated, self._length_bytes)

    @property
    def knows(self) -> bool:
        """Whether packets without a picture can be recognized in this codec."""
        return self._shows_picture is not None

    @property
    def at_open_gop(self) -> bool:
        """Whether the last packet given to ``must_show`` may lack references."""
        return 0 < self._packets_since_open_gop <= MOST_REFERENCES

    def must_show(self, packet: Any) -> bool:
        """Return whether a packet must show a picture. If it must and yields none, one was lost."""
        is_leading = self._is_leading(packet)
        self._packets_since_open_gop += is_leading or self._packets_since_open_gop > 0
        if is_leading:
            return False
        return self._shows_picture is not None and self._shows_picture(packet)

    def _is_leading(self, packet: Any) -> bool:
        """Return whether a packet is shown before the first key frame but stored after it."""
        if not self._at_start or packet.pts is None:
            return False
        if self._first_key_pts is None:
            self._first_key_pts = packet.pts if packet.is_keyframe else None
            return False
        self._at_start = packet.pts < self._first_key_pts
        return self._at_start

    def _shows_h264(self, packet: Any) -> bool:
        return any(first & 31 in H264_SLICES for first in self.nal_units(packet))

    def _shows_hevc(self, packet: Any) -> bool:
        for first in self.nal_units(packet):
            kind = first >> 1 & 63
            if kind in HEVC_SLICES:
                return kind not in HEVC_SKIPPED_LEADING
        return False

    def has_valid_sizes(self, packet: Any) -> bool:
        """Return whether the lengths in an H.264 or HEVC packet add up to its size."""
        if not self._length_bytes:
            return True
        data, at, size = memoryview(packet), 0, self._length_bytes
        while at + size < len(data):
            if data[at + size] & 0x80:  # forbidden_zero_bit
                return False
            at += size + int.from_bytes(data[at : at + size], "big")
        return at == len(data)

    def nal_units(self, packet: Any) -> Iterator[int]:
        """Yield the first byte of each NAL unit."""
        data = memoryview(packet)
        if not self._length_bytes:
            head = bytes(data[:HEAD])
            yield from _find_unit_headers(head)
            if len(data) > HEAD:
                yield from _find_unit_headers(bytes(data[HEAD - 3 :]))
            return
        at, size = 0, self._length_bytes
        while at + size < len(data):
            yield data[at + size]
            at += size + int.from_bytes(data[at : at + size], "big")


def _read_length_bytes(codec: str, extradata: bytes) -> int:
    at = {"h264": 4, "hevc": 21}.get(codec, 0)
    return (extradata[at] & 3) + 1 if at and len(extradata) > at and extradata[0] == 1 else 0


def _find_unit_headers(data: bytes) -> Iterator[int]:
    at = data.find(b"\0\0\1")
    while 0 <= at < len(data) - 3:
        yield data[at + 3]
        at = data.find(b"\0\0\1", at + 3)


def _always(packet: Any) -> bool:
    return True


def _shows_mpeg2(packet: Any) -> bool:
    return b"\0\0\1\0" in bytes(packet)  # the start code of a picture


def _shows_mpeg4(packet: Any) -> bool:
    return packet.size > LARGEST_N_VOP and b"\0\0\1\xb6" in bytes(packet)  # a VOP's start code


def _shows_vp8(packet: Any) -> bool:
    return bool(memoryview(packet)[0] & 0x10)  # show_frame


def _shows_vp9(packet: Any) -> bool:
    data = memoryview(packet)
    if data[-1] & 0xE0 == 0xC0:
        return True  # a superframe: hidden pictures, then a shown one
    bits = int.from_bytes(data[:2], "big")  # frame header: a marker of 2 bits, then the profile
    at = 12 if bits >> 12 & 3 != 3 else 11  # the profile's end; profile 3 has one more bit
    # show_existing_frame, frame_type, show_frame
    shows_existing, shows = bits >> at - 1 & 1, bits >> at - 3 & 1
    return bool(shows_existing or shows)
