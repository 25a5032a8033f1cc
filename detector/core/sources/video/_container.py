"""Read a video file's metadata with PyAV: from its headers, and from a few decoded pictures."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import av
from av.sidedata.sidedata import Type as SideDataType

from detector.core.errors import SourceError, UsageError
from detector.core.errors.holding import bad_tags, how_to_open
from detector.core.sources._bgr import TRANSFERS, is_deep_grey, is_plain, nearest_matrix
from detector.core.sources._forms import STANDARD_INPUT
from detector.core.sources._planes import why_no_planes
from detector.core.sources.base import ANY, Choice, GreyRange, SteppingSource, note_reduced
from detector.core.sources.video._complaints import Complaints
from detector.core.sources.video._tracks import (
    choose_track,
    list_data_tracks,
    read_timecode,
    select_tags,
)
from detector.core.types import LONGEST_GAP_S, SourceInfo

if TYPE_CHECKING:
    from detector.core.sources._standard_input import StandardInput

CLOCK_MAY_JUMP = 0x0200  # AVFMT_TS_DISCONT: the clock may be reset, as in MPEG-TS
# Longest pause between frames if a file states no duration (browsers' recordings), as in FFmpeg.
UNKNOWN_DURATION_S = 30 * 3600.0
MOST_STREAMS = 64  # limit on streams that appear while a file is read
FIRST_PICTURE_PACKETS = 64  # packets to search for the first picture
GREY_PICTURES = 8  # pictures used to choose the range of grey
DEFAULT_FPS = Fraction(25)  # FFmpeg's own default for raw streams
RAW_FLAGS = 0x0180  # AVFMT_NOTIMESTAMPS and AVFMT_GENERIC_INDEX, set by demuxers of raw streams
IMAGE_PIPE_SUFFIX = "_pipe"  # suffix of demuxers of joined pictures, such as jpeg_pipe
MOST_FPS = 1000  # a stated rate above this is the clock's resolution, such as DV's 60000
JOINT_PACKETS = 2  # a key frame within this many packets after a gap means joined recordings
PIPE_BYTES = 1 << 16  # bytes per read of a pipe
# With a thread per frame, these decoders detect some damage only in some of the runs.
RACY_CODECS = ("mpeg4",)


def _name_side_data(kind: type[SideDataType], number: Any) -> SideDataType:
    """Return an enum member for side data unknown to PyAV. Without it, PyAV lists no side data."""
    unnamed = object.__new__(kind)
    unnamed._name_, unnamed._value_ = f"UNNAMED_{number}", number
    return unnamed


SideDataType._missing_ = classmethod(_name_side_data)  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """A video file's metadata."""

    path: str
    stream: int  # index among all streams of the container
    info: SourceInfo
    has_timestamps: bool  # False: pts are computed from the frame rate
    decodable: bool  # whether PyAV has a decoder for it
    log_names: tuple[str, ...]  # names of its demuxer and decoder in FFmpeg's log
    complaint: str  # an error that the demuxer logged before the first packet, or ""
    not_for_opencv: str  # why cv2 must not read it; "" if it may
    why_no_planes: str  # why its pictures are read as BGR; "" if they may stay YUV
    plain: bool  # whether ``_bgr.is_plain`` is true for its first picture
    rotation: int | None  # the first picture's, in degrees; None if none was decoded
    notes: tuple[str, ...]  # messages for the session about choices made
    factor: int  # divisor of width and height when decoding (``types.Reduced``); 1: full size
    grey: GreyRange | None = None  # range of samples with more than 8 bits; None: the whole range

    @property
    def ticks(self) -> int:
        """A frame's nominal duration, in ticks of the time base."""
        return max(1, round(1 / (self.info.fps * self.info.time_base)))

    def set_displayed(self, width: int, height: int, rotation: int) -> None:
        """Set ``info`` to the first picture's stored size, rotated by ``rotation`` degrees."""
        info, quarters = self.info, round(rotation / 90) % 4 if rotation % 90 == 0 else 0
        info.rotation = quarters * 90  # like cv2, we ignore other angles
        info.width, info.height = (height, width) if quarters % 2 else (width, height)
        if quarters % 2:
            info.sample_aspect_ratio = 1 / info.sample_aspect_ratio


def open_container(path: str) -> Any:
    """Open ``path`` with PyAV. Raises SourceError."""
    try:
        if path == STANDARD_INPUT:
            _standard_input().rewind()
            # If the input is a list of files (HLS, concat), FFmpeg must not open them.
            options = {"protocol_whitelist": "none"}
            return av.open(_standard_input(), **bad_tags(), options=options, buffer_size=PIPE_BYTES)
        # ``bad_tags``: old cameras write their tags in Latin-1, which PyAV would refuse.
        how = how_to_open(path)
        container = av.open(**how, **bad_tags())
        return how["io_open"].keep(container) if "io_open" in how else container
    except (av.error.FFmpegError, UnicodeError) as error:
        if path == STANDARD_INPUT:
            _standard_input().raise_error()
        from detector.core.sources.video._unreadable import explain_open_error

        raise SourceError(f"{path}: {explain_open_error(path, error)}") from error


def _standard_input() -> StandardInput:
    from detector.core.sources._standard_input import standard_input

    return standard_input()


def probe(path: str, choice: Choice = ANY) -> VideoInfo:
    """Read the container's metadata. Raises SourceError and UsageError."""
    with Complaints() as complaints, open_container(path) as container:
        demuxer = container.format.name
        errors = [message for name, message in complaints.take() if name == demuxer]
        stream, chosen = choose_track(path, container, choice.track)
        codec = stream.codec_context
        states_size = codec is None or codec.width > 0  # read before a picture is decoded
        first = _decode_first(container, stream)
        raw = is_raw(container)
        fps, guessed = find_rate(path, container, stream, choice.rate)
        duration_s = None if raw else _read_duration_s(container, stream)
        grey = _choose_grey(container, stream, first, duration_s, choice)
        info = SourceInfo(
            path=path,
            kind="video",
            width=codec.width if codec else 0,
            height=codec.height if codec else 0,
            fps=fps,
            time_base=choose_time_base(fps, stream.time_base) if raw else stream.time_base,
            start_pts=0 if raw else stream.start_time or 0,
            frames_declared=stream.frames or None,
            duration_s=duration_s,
            has_computed_pts=raw,
            codec=codec.codec.canonical_name if codec else "unknown",
            sample_aspect_ratio=stream.sample_aspect_ratio or Fraction(1),
            stream=stream.index,
            has_audio=bool(container.streams.audio),
            has_subtitles=bool(container.streams.subtitles),
            has_data=bool(list_data_tracks(container)),
            tags=select_tags({**container.metadata, **read_timecode(stream, container)}),
            mirrored=first is not None and _is_mirrored(first),
            longest_gap_s=_choose_longest_gap_s(container, duration_s),
        )
        factor = _find_factor(path, stream, first, choice)
        reduced = note_reduced("its pictures are", factor) if factor > 1 else ""
        return VideoInfo(
            path,
            stream.index,
            info,
            has_timestamps=stream.start_time is not None and not raw,
            decodable=codec is not None,
            log_names=(demuxer, codec.name if codec else ""),
            complaint=errors[0] if errors else "",
            not_for_opencv="opencv would not stretch its grey samples"
            if grey is not None
            else _explain_not_for_opencv(path, container, stream, first, states_size),
            why_no_planes="it is mirrored" if info.mirrored else reduced or why_no_planes(first),
            plain=first is not None and is_plain(first),
            rotation=None if first is None else first.rotation % 360,
            notes=tuple(filter(None, (chosen, guessed, choice.describe_grey(grey), reduced))),
            factor=factor,
            grey=grey,
        )


@dataclass(slots=True)
class Demuxed:
    """Facts about the packets of a stream."""

    packets: int = 0
    keys: int = 0  # number of key frames
    gaps: int = 0  # number of packets in which data is missing, according to the demuxer
    last_gap: int | None = None  # number of the last such packet; all packets are counted, from 1
    end: int = 0  # position in the file at which the last packet ends
    largest_offset: int = 0  # largest difference of a packet's pts and dts, in ticks
    first_dts: int | None = None
    last_dts: int = 0

    def add(self, packet: Any) -> None:
        self.packets += 1
        self.keys += packet.is_keyframe
        if packet.is_corrupt:
            self.gaps += 1
            self.last_gap = self.packets
        elif packet.is_keyframe and self.last_gap is not None:
            # In MPEG-TS a counter jumps if data was lost, but also if two recordings were joined.
            # If they were joined, the second recording begins with a key frame.
            self.gaps -= self.packets - self.last_gap <= JOINT_PACKETS
            self.last_gap = None
        if packet.pos is not None:
            self.end = max(self.end, packet.pos + packet.size)
        if packet.dts is not None:
            self.first_dts = packet.dts if self.first_dts is None else self.first_dts
            self.last_dts = packet.dts
            if packet.pts is not None:
                self.largest_offset = max(self.largest_offset, abs(packet.pts - packet.dts))


def demux(container: Any, *streams: Any) -> Iterator[Any]:
    """Yield the packets of streams, and at the end an empty packet for each. In damaged files a new
    stream may appear, which PyAV lists only after demuxing is restarted."""
    for _ in range(MOST_STREAMS):
        try:
            yield from container.demux(*streams)
            return
        except IndexError:
            continue


def _explain_not_for_opencv(
    path: str, container: Any, stream: Any, first: Any, states_size: bool
) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        return "opencv crashes on a file name that is not UTF-8"  # OpenCV 5.0.0
    if stream.index != container.streams.video[0].index:
        return "opencv would read another track"
    if not states_size and first is not None:
        return "its beginning does not state the size of its pictures, so opencv decodes none"
    if first is not None and any(plane.line_size < 0 for plane in first.planes):
        # OpenCV 5.0.0 crashes on bgr24, which uncompressed AVI files of many programs contain.
        return "its pictures are stored bottom-up, on which opencv crashes"
    if _is_interlaced(stream, first):
        # swscale fails ("Cannot convert interlaced to progressive frames"), but cv2 ignores the
        # error and returns the buffer's old content (OpenCV 5.0.0, FFmpeg 8).
        return "opencv returns black frames for interlaced video"
    if first is not None and (nearest_matrix(first) or int(first.color_trc) not in TRANSFERS):
        return "opencv returns black frames for its colours"
    return ""


def _decode_first(container: Any, stream: Any) -> Any:
    """Decode the first picture; None if it is not in the first packets."""
    if stream.codec_context is None:
        return None
    try:
        for packet in islice(demux(container, stream), FIRST_PICTURE_PACKETS):
            for picture in stream.codec_context.decode(packet):
                return picture
    except av.error.FFmpegError:
        pass  # the readers report damage
    return None


def _find_factor(path: str, stream: Any, first: Any, choice: Choice) -> int:
    """Return the divisor of MJPEG's width and height, tried on the first picture; 1: full size."""
    if first is None or stream.codec_context.codec.canonical_name != "mjpeg":
        return 1
    factor = choice.find_reduction(first.width, first.height)
    if factor == 1 or first.interlaced_frame:
        return 1
    with open_container(path) as container:
        again = container.streams[stream.index]
        decode_reduced(again.codec_context, factor)
        small = _decode_first(container, again)
    whole = reduced_size((first.width, first.height), factor)
    return factor if small is not None and (small.width, small.height) == whole else 1


def decode_reduced(codec: Any, factor: int) -> None:
    """Make ``codec`` decode at 1/``factor`` of the size. Call it before the first packet."""
    codec.options = {"lowres": str(factor.bit_length() - 1)}


def reduced_size(size: tuple[int, int], factor: int) -> tuple[int, int]:
    return -(-size[0] // factor), -(-size[1] // factor)


def _choose_grey(
    container: Any, stream: Any, first: Any, duration_s: float | None, choice: Choice
) -> GreyRange | None:
    """Choose a grey range from pictures spread over a video, or from a pipe's first pictures."""
    if first is None or not is_deep_grey(first):
        return None
    pictures, ticks = [first], int((duration_s or 0) / stream.time_base)
    for part in range(1, GREY_PICTURES):
        with suppress(av.error.FFmpegError):
            container.seek((stream.start_time or 0) + ticks * part // GREY_PICTURES, stream=stream)
        pictures += filter(None, [_decode_first(container, stream)])
    from detector.core.sources._grey import choose_for_video

    return choose_for_video(pictures, choice.grey)


def _is_interlaced(stream: Any, first: Any) -> bool:
    """Ask the container, then the first picture: Matroska and AVI often state no field order."""
    # 0 unknown, 1 progressive, 2 and more: interlaced. PyAV before 18.1 lacks the attribute.
    if int(getattr(stream.codec_context, "field_order", 0)) >= 2:
        return True
    return first is not None and bool(first.interlaced_frame)


def _is_mirrored(picture: Any) -> bool:
    """Return whether a picture's display matrix [a b u; c d v; x y w] mirrors it."""
    matrix = picture.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return False
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(matrix)[:36])  # 16.16 fixed point
    return bool(a * d - b * c < 0)


def _read_duration_s(container: Any, stream: Any) -> float | None:
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else None


def _choose_longest_gap_s(container: Any, duration_s: float | None) -> float:
    """Return the longest pause between frames that is not a jump of the clock."""
    if container.format.flags & CLOCK_MAY_JUMP:
        return LONGEST_GAP_S
    return max(LONGEST_GAP_S, duration_s or UNKNOWN_DURATION_S)


S = TypeVar("S", bound=SteppingSource)


def require_frame(source: S, video: VideoInfo, check: Callable[[], None] = lambda: None) -> S:
    """Grab the first frame and return the source. If there is none, close the source and raise what
    ``check`` raises, or else SourceError."""
    try:
        if source.hold_first():
            return source
        check()
        from detector.core.sources.video._unreadable import explain_no_frame

        reason = explain_no_frame(video.info, video.decodable, source.counts.bad)
        raise SourceError(f"{video.info.path}: {reason}")
    except BaseException:
        source.close()
        raise


def is_raw(container: Any) -> bool:
    """Return whether pictures have no time stamps, so that we compute them from the rate."""
    format = container.format
    return int(format.flags) & RAW_FLAGS == RAW_FLAGS or format.name.endswith(IMAGE_PIPE_SUFFIX)


def find_rate(
    path: str, container: Any, stream: Any, requested: Fraction | None
) -> tuple[Fraction, str]:
    """Return the frame rate, and a note if it is a guess. Raises UsageError for a ``requested``
    rate if the file has a clock."""
    if not is_raw(container):
        if requested is not None:
            raise UsageError(
                f"{path}: --rate is for raw streams without a clock; this file "
                f"({container.format.name.split(',')[0]}) has one, so omit --rate"
            )
        return _read_rate(stream), ""
    if requested is not None:
        return requested, ""
    codec = stream.codec_context
    # FFmpeg reads this rate from H.264, HEVC and MPEG-2 headers; stream.average_rate is always 25.
    stated = None if codec is None else codec.framerate
    if stated and stated > MOST_FPS:
        stated = stream.guessed_rate  # MPEG-4 states a tick's duration instead
    if stated and stated <= MOST_FPS:
        return Fraction(stated), ""
    return DEFAULT_FPS, (
        f"the stream states no frame rate, so {DEFAULT_FPS} frames per second are assumed; give "
        "the right rate with --rate N"
    )


def choose_time_base(fps: Fraction, own: Fraction) -> Fraction:
    """Return a raw stream's time base: ``own`` if it divides a frame's duration, else 1 / fps."""
    return own if (1 / (fps * own)).denominator == 1 else 1 / fps


def _read_rate(stream: Any) -> Fraction:
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and rate <= MOST_FPS:
            return Fraction(rate)
    return Fraction(stream.average_rate or stream.guessed_rate or stream.base_rate or DEFAULT_FPS)
