"""Copy a source's video, sound and subtitles into Matroska without decoding. All times are shifted
so that the first picture is at 0, then rounded to ms."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from io import BytesIO
from itertools import chain, islice
from typing import Any, NamedTuple

import av

from detector.core.errors.holding import bad_tags, name_to_open
from detector.core.errors.text import counted
from detector.core.sinks._about import (
    copy_description,
    copy_fonts,
    describe_data,
    is_data,
    is_overlay_track,
)

MOST_STREAMS = 64  # limit on streams that appear while a file is read
REFUSED = (av.FFmpegError, OSError, ValueError)  # raised by PyAV for a stream it cannot copy
# If the first video packets have no dts, we invent some from -BEFORE_S up, below all stated dts.
BEFORE_S = 10
REORDERED_S = 2  # a picture is shown at most this much later than it is stored
# How long the muxer waits for streams with rare packets, such as subtitles.
OPTIONS = {"max_interleave_delta": "1000000"}  # microseconds


class UnfitError(Exception):
    """A source cannot be copied. The message says why, and is printed after the source's name."""


class UnreadableError(UnfitError):
    """The source cannot be read; the decoder reports why."""


class Scan(NamedTuple):
    """Times of the video's packets, in ticks of its time base."""

    first_pts: int  # pts of the earliest picture
    last_pts: int  # pts of the latest picture that is shown


def to_ms(ticks: int, base: Fraction) -> int:
    """Convert a time of 0 or more to ms. Like the muxer, round halves up."""
    # We compute with integers: a Fraction takes microseconds, and this runs for every frame.
    per_second = base.denominator
    return (2000 * ticks * base.numerator + per_second) // (2 * per_second)


def demux(container: Any, streams: list[Any]) -> Iterator[Any]:
    """Yield the packets of these streams without the empty ones at the end."""
    for _ in range(MOST_STREAMS):
        try:
            yield from (packet for packet in container.demux(*streams) if packet.size)
            return
        except IndexError:  # a new stream, which PyAV lists on the next demux
            continue


class SourceCopy:
    """An open file to copy from. Raises UnfitError if Matroska cannot hold its video."""

    def __init__(self, path: str, stream: int | None = None) -> None:
        """``stream``: index of the video among all streams; None: the first video."""
        self.notes: list[str] = []
        try:
            self.container = av.open(name_to_open(path), **bad_tags())
        except (*REFUSED, UnicodeError) as error:
            raise UnreadableError(f"cannot be opened again ({error})") from error
        try:
            self.video = self._find_video(stream)
            self.streams = [self.video, *self._choose_others()]
        except BaseException:
            self.close()
            raise
        self.base: Fraction = self.video.time_base

    def _find_video(self, index: int | None) -> Any:
        cover = av.stream.Disposition.attached_pic
        tracks = [track for track in self.container.streams.video if not track.disposition & cover]
        if not tracks:
            raise UnreadableError("has no video")
        self.videos = len(tracks)
        stream = tracks[0] if index is None else self.container.streams[index]
        if self.videos > 1:
            others = counted(self.videos - 1, "other video track", "is")
            self.notes.append(f"{others} not copied into the overlay")
        if (why := _explain_refusal(stream)) is not None:
            raise UnfitError(f"its video cannot be copied into Matroska: {why}")
        return stream

    def _choose_others(self) -> list[Any]:
        """Return the sound and subtitle streams that Matroska supports, and note the others."""
        copied = []
        for stream in (*self.container.streams.audio, *self.container.streams.subtitles):
            if is_overlay_track(stream):
                continue
            if (why := _explain_refusal(stream)) is None:
                copied.append(stream)
                continue
            what = "sound" if stream.type == "audio" else "a subtitle track"
            self.notes.append(f"{what} cannot be copied into Matroska and was omitted: {why}")
        if data := ", ".join(map(describe_data, filter(is_data, self.container.streams.data))):
            self.notes.append(f"data tracks ({data}) were omitted: Matroska cannot hold them")
        return copied

    def scan(self, most: int | None = None, longest_gap_s: float = math.inf) -> Scan:
        """Read all packets of the video once, or only the first ``most``. Raises UnfitError."""
        with av.open(self.container.name, **bad_tags()) as container:
            stream = container.streams[self.video.index]
            check = _PacketCheck(self.base, longest_gap_s)
            with suppress(*REFUSED):  # the data ends early, and so will the copy
                for packet in islice(demux(container, [stream]), most):
                    check.add(packet)
        check.check_hidden()
        if check.first is None or check.last is None:
            raise UnfitError("shows no picture that has a time stamp")
        return Scan(check.first, check.last)

    def add_to(self, output: Any) -> dict[int, Any]:
        """Add the streams to ``output``, with subtitles off by default. Return the new streams by
        their index in the source."""
        added = {}
        for stream in self.streams:
            # "Opaque" streams need no encoder; PyAV may have none for AV1.
            copied = output.add_stream_from_template(stream, opaque=True)
            added[stream.index] = copied
            copy_description(stream, copied)
            if stream.type == "subtitle":
                copied.disposition &= ~av.stream.Disposition.default
        copy_fonts(self.container, output)
        return added

    def close(self) -> None:
        self.container.close()


def _explain_refusal(stream: Any) -> str | None:
    try:
        with av.open(BytesIO(), "w", format="matroska") as output:
            output.add_stream_from_template(stream, opaque=True)
            output.start_encoding()
    except REFUSED as error:
        return re.sub(r"^\[Errno \d+\] ", "", str(error)).partition(":")[0]
    return None


class _PacketCheck:
    """Checks that a muxer accepts a video's packets as they are. Raises UnfitError."""

    def __init__(self, base: Fraction, longest_gap_s: float) -> None:
        self._gap = longest_gap_s / base  # ticks
        self.first: int | None = None
        self.last: int | None = None
        self._base = base
        self._dts: int | None = None
        self._shown: int | None = None  # pts of the earliest picture that is shown
        self._hidden: set[int] = set()  # pts of later pictures that an edit list hides

    def add(self, packet: Any) -> None:
        pts, dts = packet.pts, packet.dts
        if pts is None:
            raise UnfitError(
                "its packets have no time stamps, as in AVI with B-frames or raw streams"
            )
        if packet.has_sidedata("new_extradata"):
            raise UnfitError(f"its codec parameters change at {self._at(pts)}")
        if dts is not None:
            if self._dts is not None and dts < self._dts:
                raise UnfitError(f"its clock is set back at {self._at(pts)}")
            if self._dts is not None and dts - self._dts > self._gap:
                raise UnfitError(f"its clock jumps to {self._at(pts)}")
            if pts < dts:
                raise UnfitError(f"its time stamps contradict each other at {self._at(pts)}")
            self._dts = dts
        if packet.is_discard:  # hidden by an edit list
            if self._shown is not None and pts > self._shown:
                self._hidden.add(pts)
        else:
            self._shown = pts if self._shown is None else min(self._shown, pts)
            self.last = pts if self.last is None else max(self.last, pts)
        self.first = pts if self.first is None else min(self.first, pts)

    def check_hidden(self) -> None:
        """Raise UnfitError if pictures are hidden between shown ones."""
        for pts in sorted(self._hidden):
            if self._shown is not None and self.last is not None and self._shown < pts < self.last:
                raise UnfitError(
                    f"its edit list hides pictures at {self._at(pts)}, which a copy would show"
                )

    def _at(self, pts: int) -> str:
        return f"{float(pts * self._base):.3f} s"


class PacketCopier:
    """Copies packets into ``output`` up to the latest frame; later packets wait."""

    def __init__(
        self,
        source: SourceCopy,
        output: Any,
        streams: dict[int, Any],
        shift: int,
        packets: Iterator[Any],
    ) -> None:
        """``streams``: index in the source -> stream of ``output``. ``shift``: subtracted from all
        times, in ticks of the video's time base."""
        self.copied = 0  # packets of the video
        self.refused = 0  # packets of the video that the muxer refused as damaged
        self.ended = False
        self.broken = ""
        self._source, self._output, self._streams = source, output, streams
        self._shift_s = shift * source.base
        self._shift = {
            stream.index: shift
            if stream is source.video
            else round(self._shift_s / stream.time_base)
            for stream in source.streams
        }
        self._held: deque[Any] = deque()
        self._dts: dict[int, int] = {}
        self._packets = packets

    def copy_up_to(self, pts: int) -> None:
        """Copy all streams' packets up to the time ``pts``, in ticks of the video's time base."""
        needed = 0
        for number, packet in enumerate(self._held, 1):
            if self._is_due(packet, pts):
                needed = number
        while not self.ended:
            packet = self._read()
            if packet is None:
                break
            self._held.append(packet)
            if self._is_due(packet, pts):
                needed = len(self._held)
            if packet.stream.index == self._source.video.index and _estimate_dts(packet) > pts:
                break
        for _ in range(needed):
            self._mux(self._held.popleft())

    def copy_rest(self) -> None:
        while self._held:
            self._mux(self._held.popleft())
        while (packet := self._read()) is not None:
            self._mux(packet)

    def _read(self) -> Any:
        try:
            packet = next(self._packets, None)
        except REFUSED as error:
            self.broken, packet = getattr(error, "strerror", None) or str(error), None
        self.ended = packet is None
        return packet

    def _is_due(self, packet: Any, pts: int) -> bool:
        if packet.pts is None:
            return False
        if packet.stream.index == self._source.video.index:
            return bool(packet.pts <= pts)
        return bool(packet.pts * packet.time_base <= pts * self._source.base)

    def _mux(self, packet: Any) -> None:
        index = packet.stream.index
        is_video = index == self._source.video.index
        if packet.pts is None or packet.pts < self._shift[index]:
            return  # it is before the first picture
        packet.pts -= self._shift[index]
        packet.dts = self._choose_dts(packet, index)
        packet.stream = self._streams[index]
        try:
            self._output.mux_one(packet)
        except (av.error.ArgumentError, av.error.InvalidDataError):  # the packet is damaged
            self.refused += is_video
            return
        self.copied += is_video

    def _choose_dts(self, packet: Any, index: int) -> int:
        """Return a dts that never decreases. Only the muxer uses it: Matroska does not store it."""
        last = self._dts.get(index)
        if packet.dts is not None:
            dts = packet.dts - self._shift[index]
            dts = dts if last is None else max(dts, last)
        elif packet.stream.type != "video":
            dts = packet.pts if last is None else max(packet.pts, last)
        else:
            dts = -round(BEFORE_S / packet.time_base) if last is None else last + 1
        self._dts[index] = min(dts, packet.pts)
        return self._dts[index]


def _estimate_dts(packet: Any) -> int:
    """Return the dts. If it is missing, return a lower bound."""
    if packet.dts is not None:
        return int(packet.dts)
    return int(packet.pts - REORDERED_S / packet.time_base)


def packets_from(source: SourceCopy, first_pts: int | None) -> tuple[int, Iterator[Any]]:
    """Return the pts of the last key frame at or before ``first_pts``, and the packets from there
    on. For None, return 0 and all packets. Does not seek, because the file's index may be wrong."""
    packets = demux(source.container, source.streams)
    if first_pts is None:
        return 0, packets
    video, held, key = source.video.index, deque[Any](), None
    for packet in packets:
        is_video = packet.stream.index == video
        if is_video and packet.is_keyframe and packet.pts <= first_pts:
            key = packet.pts
            begin_s = key * source.base
            held = deque(
                other
                for other in held
                if other.stream.index != video
                and other.pts is not None
                and other.pts * other.time_base >= begin_s
            )
        held.append(packet)
        if is_video and _estimate_dts(packet) > first_pts:
            break
    if key is None:
        raise UnfitError("has no key frame before the first picture that was read")
    # Omit pictures stored after the key frame but shown before it: they would lack references.
    following = chain(held, packets)
    return key, (one for one in following if one.stream.index != video or one.pts >= key)
