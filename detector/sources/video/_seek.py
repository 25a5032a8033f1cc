"""Where to begin so that frames from a time on are those of a whole run, found without decoding.

A key frame that nothing behind it looks past makes the same pictures, whether what lies before it
was decoded or not. The number of a frame is the number of pictures that are shown before it, and
packets tell that (``_packets.py``). Wherever a packet leaves a doubt, there is no landing, and the
file is decoded from its beginning.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av

from detector.sources.video._complaints import Complaints
from detector.sources.video._container import Video, demux, open_container
from detector.sources.video._packets import PictureRule
from detector.sources.video._structure import Demuxed, find_damaged_bytes

CONTAINERS = ("mov", "matroska")  # in the demuxer's name: those that store pts and find a time
H264_IDR = 5
HEVC_RANDOM_ACCESS = range(16, 22)


@dataclass(frozen=True, slots=True)
class Landing:
    """A key frame to begin at. pts and dts in ticks of the source's time base.

    ``numbers``: pts -> number of the frame, up to the first one that is wanted (``wanted_pts``; the
    last one, where the file ends before) and some behind it. ``before``: pts of each key frame up
    to this one -> what lies before it; any of them will do.
    """

    key_pts: int
    key_dts: int
    wanted_pts: int
    numbers: dict[int, int]
    before: dict[int, Demuxed]


@dataclass(frozen=True, slots=True)
class _Key:
    pts: int
    dts: int
    demuxed: Demuxed


class _DoubtError(Exception):
    """Something that only a decoder can tell."""


def find_landing(video: Video, start_s: Fraction) -> Landing | None:
    """The last key frame before ``start_s``; None where it is the first of the file, or where the
    frames behind it might differ from those of a whole run.
    """
    demuxer = video.names_in_log[0]
    if (
        not any(name in demuxer for name in CONTAINERS)
        or not (video.dated and video.decodable)
        or video.complaint
        or video.not_for_opencv
    ):
        return None
    start = start_s / video.info.time_base
    try:
        with Complaints(demuxer) as complaints, open_container(video.path) as container:
            stream = container.streams[video.stream]
            if find_damaged_bytes(container):
                return None
            shown, keys = _read_until(container, stream, video, start)
            if complaints.heard():
                return None
    except (_DoubtError, av.error.FFmpegError):
        return None
    numbers = {pts: number for number, pts in enumerate(sorted(shown))}
    wanted = min((pts for pts in shown if pts >= start), default=max(shown, default=0))
    before = [key for key in keys if key.pts <= wanted]
    if len(before) < 2:
        return None
    key = before[-1]
    by_key = {key.pts: key.demuxed for key in before}
    return Landing(key.pts, key.dts, wanted, numbers, by_key)


def _read_until(
    container: Any, stream: Any, video: Video, start: Fraction
) -> tuple[list[int], list[_Key]]:
    """pts of the pictures up to ``start`` (ticks) and some behind it, and the key frames.

    Raises _DoubtError.
    """
    codec = stream.codec_context
    rule, demuxed = PictureRule(video.info.codec, codec.extradata), Demuxed()
    if not rule.knows:
        raise _DoubtError
    seen = _Seen(rule, video.info.codec)
    for packet in demux(container, stream):
        if not packet.size or (packet.dts is not None and seen.reaches(packet.dts, start)):
            break
        seen.add(packet, demuxed)
        demuxed.add(packet)
    return seen.shown, seen.keys


class _Seen:
    """The pictures that packets show, and the key frames among them. Raises _DoubtError."""

    def __init__(self, rule: PictureRule, codec: str) -> None:
        self.shown: list[int] = []  # pts
        self.keys: list[_Key] = []
        self._rule, self._codec = rule, codec
        self._stamps: set[int] = set()
        self._latest: int | None = None

    def reaches(self, dts: int, start: Fraction) -> bool:
        """Whether all pictures up to ``start`` were there before the packet with this dts."""
        return dts >= start and self._latest is not None and self._latest >= start

    def add(self, packet: Any, demuxed: Demuxed) -> None:
        """``demuxed``: what was before the packet."""
        pts, latest = packet.pts, self._latest
        if pts is None or packet.is_corrupt or not self._rule.is_sound(packet):
            raise _DoubtError
        # Matroska stores no dts, and FFmpeg does not know the first ones.
        dts = min(pts, pts if latest is None else latest) if packet.dts is None else packet.dts
        if pts < dts:
            raise _DoubtError
        if not self._shows(packet):
            return
        if pts in self._stamps or (self.keys and pts < self.keys[-1].pts):
            raise _DoubtError  # shown before the key frame that it is stored behind
        if packet.is_keyframe:
            if (latest is not None and pts < latest) or not _is_clean(
                self._rule, self._codec, packet
            ):
                raise _DoubtError
            self.keys.append(_Key(pts, dts, copy(demuxed)))
        self.shown.append(pts)
        self._stamps.add(pts)
        self._latest = pts if latest is None else max(latest, pts)

    def _shows(self, packet: Any) -> bool:
        must_show = self._rule.must_show(packet)
        if packet.is_discard:
            return False  # hidden by an edit list: decoded, and not shown
        if not must_show and self._codec not in ("vp8", "vp9"):
            raise _DoubtError  # it may show a picture or none
        return must_show


def _is_clean(rule: PictureRule, codec: str, packet: Any) -> bool:
    """Whether a decoder forgets at this key frame all that was before."""
    if codec == "h264":
        return any(first & 31 == H264_IDR for first in rule.nal_units(packet))
    if codec == "hevc":
        return any(first >> 1 & 63 in HEVC_RANDOM_ACCESS for first in rule.nal_units(packet))
    return True
