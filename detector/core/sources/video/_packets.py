"""Decide by their first bytes which packets must show a picture. Nothing is decoded.

VP8 and VP9 store hidden pictures, an encoder may repeat a picture with a few bytes, and a recording
that begins with an open GOP has leading pictures whose references are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import av

from detector.core.errors.text import counted
from detector.core.sources.video._container import VideoInfo, demux, open_container
from detector.core.sources.video._structure import Demuxed, find_damage

if TYPE_CHECKING:
    from detector.core.sources.video._fields import FieldReader

# MPEG-4 part 2: a VOP that is not coded. FFmpeg takes packets up to this size for one, too.
LARGEST_N_VOP = 19  # bytes
H264_SLICES = range(1, 6)
HEVC_SLICES, HEVC_SKIPPED_LEADING = range(32), (8, 9)  # the latter: RASL pictures
MOST_REFERENCES = 16  # pictures that one may refer to, in H.264 and HEVC
HEAD = 4096  # bytes of a packet searched for the first slice, before all are


@dataclass(frozen=True, slots=True)
class Check:
    """A file's packets compared with the frames decoded from it."""

    lost: int  # packets that must show a picture, minus the frames decoded
    behind: int  # packets after the last frame
    error: str = ""  # of the demuxer, if it gave up
    damage: str = ""  # of the file's structure

    @property
    def reason(self) -> str:
        """Why the file should be decoded again packet by packet; "" if that would find nothing."""
        if self.error:
            return self.error
        if self.behind:
            return f"{counted(self.behind, 'packet')} left"
        return f"{counted(self.lost, 'packet')} gave no frame" if self.lost else ""


def check_packets(video: VideoInfo, frames: int, last_pts: int | None) -> Check:
    """Demux the file again and check the packets after the last of ``frames``, at ``last_pts``."""
    demuxed, must_show, later, undated, error = Demuxed(), 0, 0, 0, ""
    with open_container(video.path) as container:
        stream = container.streams[video.stream]
        codec = stream.codec_context
        rule = PictureRule(video.info.codec, codec.extradata if codec else None)
        try:
            for packet in demux(container, stream):
                if not packet.size:  # the flush at the end
                    continue
                demuxed.add(packet)
                if packet.is_discard:  # an edit list hides it
                    continue
                shows = rule.must_show(packet) or not rule.knows
                must_show += shows
                undated += packet.pts is None
                later += shows and None not in (packet.pts, last_pts) and packet.pts > last_pts
        except av.error.FFmpegError as problem:
            error = problem.strerror
        damage = find_damage(container, stream, demuxed)
    missing = max(0, must_show - frames)
    behind = (
        missing if last_pts is None or undated else min(later, missing) if rule.knows else later
    )
    return Check(missing if rule.knows else 0, behind, error, damage)


class PictureRule:
    """Returns for a stream's packets, in order, whether each must show a picture."""

    def __init__(self, codec: str, extradata: bytes | None, *, at_open_gop: bool = False) -> None:
        """``at_open_gop``: pictures after the first packet, a key frame, refer to earlier ones."""
        self._says = {
            "h264": self._h264,
            "hevc": self._hevc,
            "mpeg1video": _mpeg2,
            "mpeg2video": _mpeg2,
            "mpeg4": _mpeg4,
            "vp8": _vp8,
            "vp9": _vp9,
            "av1": _always,
            "mjpeg": _always,
        }.get(codec)
        # Bytes of the size before each NAL unit; 0 for start codes.
        self._length_bytes = _length_bytes(codec, extradata or b"")
        self._stated = codec, extradata or b""
        self._first_key: int | None = None  # its pts
        self._at_start = True
        self._packets_of_open_gop = int(at_open_gop)

    @cached_property
    def fields(self) -> FieldReader:
        """Asked by who follows each packet, or looks into it."""
        from detector.core.sources.video._fields import FieldReader

        return FieldReader(*self._stated, self._length_bytes)

    @property
    def knows(self) -> bool:
        """Whether packets without a picture can be recognised in this codec."""
        return self._says is not None

    @property
    def at_open_gop(self) -> bool:
        """Whether the packet of the last ``must_show`` may refer to what was cut off before it."""
        return 0 < self._packets_of_open_gop <= MOST_REFERENCES

    def must_show(self, packet: Any) -> bool:
        """Return whether a decoder that gives no picture for this packet has lost one."""
        is_leading = self._is_leading(packet)
        self._packets_of_open_gop += is_leading or self._packets_of_open_gop > 0
        if is_leading:
            return False
        return self._says is not None and self._says(packet)

    def _is_leading(self, packet: Any) -> bool:
        """Return whether a packet is shown before the first key frame but stored after it."""
        if not self._at_start or packet.pts is None:
            return False
        if self._first_key is None:
            self._first_key = packet.pts if packet.is_keyframe else None
            return False
        self._at_start = packet.pts < self._first_key
        return self._at_start

    def _h264(self, packet: Any) -> bool:
        return any(first & 31 in H264_SLICES for first in self.nal_units(packet))

    def _hevc(self, packet: Any) -> bool:
        for first in self.nal_units(packet):
            kind = first >> 1 & 63
            if kind in HEVC_SLICES:
                return kind not in HEVC_SKIPPED_LEADING
        return False

    def is_sound(self, packet: Any) -> bool:
        """Return whether sizes in an H.264 or HEVC packet fill it exactly: damage breaks that."""
        if not self._length_bytes:
            return True
        data, at, size = memoryview(packet), 0, self._length_bytes
        while at + size < len(data):
            if data[at + size] & 0x80:  # forbidden_zero_bit
                return False
            at += size + int.from_bytes(data[at : at + size], "big")
        return at == len(data)

    def nal_units(self, packet: Any) -> Iterator[int]:
        data = memoryview(packet)
        if not self._length_bytes:
            head = bytes(data[:HEAD])
            yield from _after_start_codes(head)
            if len(data) > HEAD:
                yield from _after_start_codes(bytes(data[HEAD - 3 :]))
            return
        at, size = 0, self._length_bytes
        while at + size < len(data):
            yield data[at + size]
            at += size + int.from_bytes(data[at : at + size], "big")


def _length_bytes(codec: str, extradata: bytes) -> int:
    at = {"h264": 4, "hevc": 21}.get(codec, 0)
    return (extradata[at] & 3) + 1 if at and len(extradata) > at and extradata[0] == 1 else 0


def _after_start_codes(data: bytes) -> Iterator[int]:
    at = data.find(b"\0\0\1")
    while 0 <= at < len(data) - 3:
        yield data[at + 3]
        at = data.find(b"\0\0\1", at + 3)


def _always(packet: Any) -> bool:
    return True


def _mpeg2(packet: Any) -> bool:
    return b"\0\0\1\0" in bytes(packet)  # the start code of a picture


def _mpeg4(packet: Any) -> bool:
    return packet.size > LARGEST_N_VOP and b"\0\0\1\xb6" in bytes(packet)  # that of a VOP


def _vp8(packet: Any) -> bool:
    return bool(memoryview(packet)[0] & 0x10)  # show_frame


def _vp9(packet: Any) -> bool:
    data = memoryview(packet)
    if data[-1] & 0xE0 == 0xC0:
        return True  # a superframe: hidden pictures, then one that is shown
    bits = int.from_bytes(data[:2], "big")  # of the frame header, starting with a marker of 2 bits
    at = 12 if bits >> 12 & 3 != 3 else 11  # after the profile; profile 3 has one bit more
    # between them: whether it is not a key frame
    shows_existing, shows = bits >> at - 1 & 1, bits >> at - 3 & 1
    return bool(shows_existing or shows)
