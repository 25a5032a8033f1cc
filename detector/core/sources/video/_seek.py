"""Find where to start decoding: from a given time on, frames must equal those of a full decode.

If the last key frame before the time starts an open GOP, an earlier one is used. A frame's number
is found by counting the packets that show an earlier picture. If it is unclear whether some packet
shows a picture, the file is decoded from its beginning.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av

from detector.core.sources.video._complaints import Complaints
from detector.core.sources.video._container import Demuxed, VideoInfo, demux, open_container
from detector.core.sources.video._keys import HEVC_BREAKS, KeyReader, Promise
from detector.core.sources.video._packets import HEVC_SKIPPED_LEADING, PictureRule
from detector.core.sources.video._structure import find_damage, find_damaged_bytes

SEEKABLE = ("mov", "matroska")  # demuxers of containers that store pts and can seek by time
# Codecs whose key frames are I pictures, which may have leading pictures.
REORDERED_CODECS = ("mpeg1video", "mpeg2video", "mpeg4")
KEYS_BEFORE = 16  # how many earlier key frames a landing may contain


@dataclass(frozen=True, slots=True)
class LandingKey:
    """A usable key frame. ``is_open``: it starts an open GOP. ``demuxed``: packets before it."""

    pts: int
    is_open: bool
    demuxed: Demuxed


@dataclass(frozen=True, slots=True)
class Landing:
    """The key frame to start decoding at. pts and dts are in ticks of the source's time base.

    ``shown``: pts of the frames from number ``first`` up to ``wanted_pts``. ``fits``: usable key
    frames, the last at ``key_pts``. A decoder whose first picture is before ``safe_pts`` began at
    one of ``fits``; any other decoder may have begun at a later key frame.
    """

    key_pts: int
    key_dts: int
    wanted_pts: int
    safe_pts: int
    first: int
    shown: tuple[int, ...]
    fits: tuple[LandingKey, ...]

    def count_before(self, pts: int) -> int:
        return bisect_left(self.shown, pts)

    def number(self, pts: int) -> int | None:
        """Return the number of the frame with this pts; None if it is not in ``shown``."""
        at = self.count_before(pts)
        return self.first + at if self.shown[at : at + 1] == (pts,) else None

    def find(self, pts: int) -> LandingKey | None:
        """Return the usable key frame with this pts, or None."""
        return next((fit for fit in self.fits if fit.pts == pts), None)


@dataclass(slots=True)
class Key:
    """A key frame. ``leads``: the lowest pts among this frame and its leading pictures. ``at``:
    number of pictures stored before it."""

    pts: int
    dts: int
    demuxed: Demuxed
    promise: Promise
    leads: int
    at: int


class DoubtError(Exception):
    """The packets do not show which frames a decoder returns. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The pictures of a file according to its packets. ``shown``: their pts, ascending. ``stored``:
    their pts in stored order. ``unreferenced``: per stored picture, 1 if no other refers to it."""

    shown: Sequence[int]
    keys: Sequence[Key]
    stored: Sequence[int]
    unreferenced: bytes
    packets: int

    def number(self, pts: int) -> int:
        return bisect_left(self.shown, pts)

    def find_landing(self, target: int, most: int = KEYS_BEFORE) -> Landing | None:
        """Return where to start for the pts ``target``, with up to ``most`` earlier key frames."""
        usable = [key for key in self.keys if key.promise is not Promise.NONE and key.pts <= target]
        if usable and usable[-1].promise is Promise.OPEN:
            usable.pop()
        if len(usable) < 2:
            return None
        key, before = usable[-1], usable[-1 - most :]
        unsafe = [
            other.leads
            for other in self.keys
            if other.pts > key.pts and other.leads <= target and other.promise is not Promise.CLEAN
        ]
        first, last = self.number(before[0].leads), self.number(target)
        return Landing(
            key.pts,
            key.dts,
            target,
            min(unsafe, default=target + 1),
            first,
            tuple(self.shown[first : last + 1]),
            tuple(LandingKey(key.pts, key.promise is Promise.OPEN, key.demuxed) for key in before),
        )


def find_landing(video: VideoInfo, start_s: Fraction) -> Landing | None:
    """Return the last usable key frame before ``start_s``; None: start at the file's beginning."""
    start = start_s / video.info.time_base
    try:
        survey = survey_packets(video, start)
    except (DoubtError, av.error.FFmpegError):
        return None
    if not survey.shown:
        return None
    number = min(survey.number(-int(-start // 1)), len(survey.shown) - 1)
    return survey.find_landing(survey.shown[number])


def survey_packets(
    video: VideoInfo, until: Fraction | None = None, *, watch: Callable[[], None] = lambda: None
) -> Survey:
    """Read a file's packets up to a time in ticks (None: all), calling ``watch`` for each. Raises
    FFmpegError, and DoubtError if the packets do not prove what a decoder returns."""
    demuxer = video.log_names[0]
    if not any(name in demuxer for name in SEEKABLE):
        raise DoubtError(f"its container cannot seek by time ({demuxer.split(',')[0]})")
    if not (video.has_timestamps and video.decodable):
        raise DoubtError("its pictures have no time stamps, or there is no decoder for them")
    if video.complaint:
        raise DoubtError(f"its structure is damaged: {video.complaint}")
    if video.not_for_opencv:
        raise DoubtError(video.not_for_opencv)
    with Complaints(demuxer) as complaints, open_container(video.path) as container:
        if damage := find_damaged_bytes(container):
            raise DoubtError(damage)
        stream = container.streams[video.stream]
        index, demuxed = _PacketIndex(video.info.codec, stream.codec_context), Demuxed()
        for packet in demux(container, stream):
            if not packet.size:
                break
            if until is not None and packet.dts is not None and index.reaches(packet.dts, until):
                break
            watch()
            index.add(packet, demuxed)
            demuxed.add(packet)
        if until is None and (damage := find_damage(container, stream, demuxed)):
            raise DoubtError(damage)
        if errors := complaints.take():
            raise DoubtError(f"its structure is damaged: {errors[0][1]}")
    shown = array("q", sorted(index.shown))
    if any(pts == following for pts, following in pairwise(shown)):
        raise DoubtError("two of its pictures have the same time stamp")
    return Survey(shown, index.keys, index.shown, bytes(index.unreferenced), index.packets)


class _PacketIndex:
    """Lists the pictures that packets show, and the key frames. Raises DoubtError."""

    def __init__(self, codec: str, context: Any) -> None:
        self.shown = array("q")  # pts, in stored order
        self.keys: list[Key] = []
        self.unreferenced = bytearray()
        self.packets = 0
        extradata = context.extradata or b""
        self._codec, self._rule = codec, PictureRule(codec, extradata)
        if not self._rule.knows:
            raise DoubtError(f"{codec} packets do not say which picture they show")
        self._key_reader = KeyReader(codec, self._rule, extradata)
        self._latest: int | None = None

    def reaches(self, dts: int, until: Fraction) -> bool:
        """Return whether all pictures up to ``until`` are stored before the packet at ``dts``."""
        return dts >= until and self._latest is not None and self._latest >= until

    def add(self, packet: Any, demuxed: Demuxed) -> None:
        """Add a packet. ``demuxed``: the packets before it."""
        pts, latest = packet.pts, self._latest
        self.packets += 1
        if pts is None:
            raise DoubtError("a packet has no time stamp")
        if packet.is_corrupt or not self._rule.has_valid_sizes(packet):
            raise DoubtError("a packet is damaged")
        # Matroska stores no dts, and FFmpeg cannot compute the first ones.
        dts = min(pts, pts if latest is None else latest) if packet.dts is None else packet.dts
        if pts < dts:
            raise DoubtError("its time stamps contradict each other")
        if self._key_reader.changes_parameters(packet):
            raise DoubtError("its codec parameters change midway")
        if not self._shows(packet):
            return
        if packet.is_keyframe:
            promise = self._key_reader.promise(packet)
            if latest is not None and pts < latest and promise is not Promise.NONE:
                raise DoubtError("a key frame is shown before pictures that are stored before it")
            self.keys.append(Key(pts, dts, copy(demuxed), promise, pts, len(self.shown)))
        elif self.keys and pts < self.keys[-1].pts:
            self._add_leading(pts)
        self.shown.append(pts)
        self.unreferenced.append(self._key_reader.is_unreferenced(packet))
        self._latest = pts if latest is None else max(latest, pts)

    def _add_leading(self, pts: int) -> None:
        """Note a leading picture, which is stored after its key frame but shown before it."""
        key, earlier = self.keys[-1], self.keys[:-1]
        if key.promise is Promise.CLEAN and self._codec in REORDERED_CODECS:
            key.promise = Promise.OPEN
        if key.promise is Promise.CLEAN or not earlier or pts < earlier[-1].pts:
            raise DoubtError("a picture stored after a key frame is shown before it")
        key.leads = min(key.leads, pts)

    def _shows(self, packet: Any) -> bool:
        must_show = self._rule.must_show(packet)
        if packet.is_discard:
            return False  # hidden by an edit list: decoded but not shown
        if self._codec == "hevc":
            kinds = [first >> 1 & 63 for first in self._rule.nal_units(packet)]
            if any(kind in HEVC_BREAKS for kind in kinds):
                raise DoubtError("its video stream ends and starts again midway")
            # A decoder omits the leading pictures of the first key frame, and shows all others.
            if len(self.keys) > 1 and any(kind in HEVC_SKIPPED_LEADING for kind in kinds):
                return True
        if not must_show and self._codec not in ("vp8", "vp9"):
            raise DoubtError("a packet may or may not show a picture")
        return must_show
