"""Read a video file's metadata with PyAV; only the first picture is decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any

import av
from av.sidedata.sidedata import Type as SideDataType

from detector.core.errors import SourceError, UsageError
from detector.core.errors.holding import bad_tags, how_to_open, open_object
from detector.core.errors.text import counted
from detector.core.sources._bgr import TRANSFERS, is_deep_grey, is_plain, nearest_matrix
from detector.core.sources._forms import STANDARD_INPUT
from detector.core.sources._planes import why_no_planes
from detector.core.sources.base import ANY, Choice, GreyRange, note_of_reduced
from detector.core.sources.video._complaints import Complaints
from detector.core.sources.video._tracks import choose_track, data_tracks, kept_tags, read_timecode
from detector.core.types import LONGEST_GAP_S, SourceInfo

if TYPE_CHECKING:
    from detector.core.sources._standard_input import StandardInput

CLOCK_MAY_JUMP = 0x0200  # AVFMT_TS_DISCONT: MPEG-TS and its like, whose clock a sender sets anew
# Recordings of browsers state no duration. A pause in them may be as long as in ffmpeg.
UNKNOWN_DURATION_S = 30 * 3600.0
MOST_STREAMS = 64  # limit on streams that appear while a file is read
FIRST_PICTURE_PACKETS = 64  # packets to search for the first picture
GREY_LOOKS = 8  # pictures used to choose the range of grey
DEFAULT_FPS = Fraction(25)  # if nothing is known; FFmpeg's own default for raw streams
# AVFMT_NOTIMESTAMPS and AVFMT_GENERIC_INDEX: what FFmpeg's demuxers of raw streams have in common.
RAW_FLAGS = 0x0180
PICTURES_IN_A_ROW = "_pipe"  # ends the names of demuxers such as that of JPEG after JPEG
MOST_FPS = 1000  # more is the resolution of a clock, as DV's 60000
HEAD_BYTES = 512  # of a file, to describe its format in a message
PIPE_BYTES = 1 << 16  # per read of a pipe, which returns what it has


def _name_side_data(kind: type[SideDataType], number: Any) -> SideDataType:
    """Return a member for side data unknown to PyAV, which otherwise refuses to list any."""
    unnamed = object.__new__(kind)
    unnamed._name_, unnamed._value_ = f"UNNAMED_{number}", number
    return unnamed


SideDataType._missing_ = classmethod(_name_side_data)  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """A video file, opened once for its metadata and closed again."""

    path: str
    stream: int  # index among all streams of the container
    info: SourceInfo
    dated: bool  # the stream has a first timestamp; without one, pts are counted, not read
    decodable: bool  # PyAV has a decoder for it
    names_in_log: tuple[str, ...]  # of its demuxer and its decoder, in FFmpeg's messages
    complaint: str  # of the demuxer, about what it read before the first packet
    not_for_opencv: str  # why cv2 would return wrong pictures; "" if it does not
    not_for_planes: str  # why its pictures are read as BGR; "" if they may stay YUV
    plain: bool  # _bgr.py can convert its first picture itself, if needed
    rotation: int | None  # degrees, as the first picture states it; None if that came late
    notes: tuple[str, ...]  # sentences for the session about choices made
    factor: int  # of ``types.Reduced``, at which its pictures are decoded; 1: full size
    grey: GreyRange | None = None  # of samples of more than 8 bits; None: all that they can hold

    @property
    def ticks(self) -> int:
        """Nominal duration of a frame, in ticks of the time base."""
        return max(1, round(1 / (self.info.fps * self.info.time_base)))

    def set_displayed(self, width: int, height: int, rotation: int) -> None:
        """Correct ``info`` by the first picture's stored size, to be rotated by ``rotation``."""
        info, quarter = self.info, round(rotation / 90) % 4 if rotation % 90 == 0 else 0
        info.rotation = quarter * 90  # other angles are not applied, neither by cv2 nor here
        info.width, info.height = (height, width) if quarter % 2 else (width, height)
        if quarter % 2:
            info.sample_aspect_ratio = 1 / info.sample_aspect_ratio


def open_container(path: str) -> Any:
    """Open ``path`` as a PyAV container. Raises SourceError that says why it cannot be opened."""
    try:
        if path == STANDARD_INPUT:
            return _open_standard_input()
        # Old cameras write their tags in Latin-1, which must not make a video unreadable.
        how = how_to_open(path)
        container = av.open(**how, **bad_tags())
        return how["io_open"].keep(container) if "io_open" in how else container
    except (av.error.FFmpegError, UnicodeError) as error:
        if path == STANDARD_INPUT:
            _standard_input().raise_error()
        raise SourceError(f"{path}: {_why(path, error)}") from error


def _standard_input() -> StandardInput:
    from detector.core.sources._standard_input import standard_input

    return standard_input()


def _open_standard_input() -> Any:
    _standard_input().rewind()
    # A list of files (HLS, concat) must not make FFmpeg open any of them.
    options = {"protocol_whitelist": "none"}
    return av.open(_standard_input(), **bad_tags(), options=options, buffer_size=PIPE_BYTES)


def probe(path: str, choice: Choice = ANY) -> VideoInfo:
    """Read the container's metadata. Raises SourceError and UsageError."""
    with Complaints() as complaints, open_container(path) as container:
        demuxer = container.format.name
        said = [message for who, message in complaints.take() if who == demuxer]
        stream, chosen = choose_track(path, container, choice.track)
        codec = stream.codec_context
        sized = (
            codec is None or codec.width > 0
        )  # stated before a picture is decoded, which is all that opencv knows
        first = _first_picture(container, stream)
        raw = is_raw(container)
        fps, guessed = rate_of(path, container, stream, choice.rate)
        duration_s = None if raw else _duration_s(container, stream)
        grey = _choose_grey(container, stream, first, duration_s, choice)
        info = SourceInfo(
            path=path,
            kind="video",
            width=codec.width if codec else 0,
            height=codec.height if codec else 0,
            fps=fps,
            time_base=time_base_for(fps, stream.time_base) if raw else stream.time_base,
            start_pts=0 if raw else stream.start_time or 0,
            frames_declared=stream.frames or None,
            duration_s=duration_s,
            counted=raw,
            codec=codec.codec.canonical_name if codec else "unknown",
            sample_aspect_ratio=stream.sample_aspect_ratio or Fraction(1),
            stream=stream.index,
            has_audio=bool(container.streams.audio),
            has_subtitles=bool(container.streams.subtitles),
            has_data=bool(data_tracks(container)),
            tags=kept_tags({**container.metadata, **read_timecode(stream, container)}),
            mirrored=first is not None and _is_mirrored(first),
            longest_gap_s=_longest_gap_s(container, duration_s),
        )
        factor = _find_factor(path, stream, first, choice)
        reduced = note_of_reduced("its pictures are", factor) if factor > 1 else ""
        return VideoInfo(
            path,
            stream.index,
            info,
            dated=stream.start_time is not None and not raw,
            decodable=codec is not None,
            names_in_log=(demuxer, codec.name if codec else ""),
            complaint=said[0] if said else "",
            not_for_opencv="opencv would not stretch its grey samples"
            if grey is not None
            else _not_for_opencv(path, container, stream, first, sized),
            not_for_planes="it is turned" if info.mirrored else reduced or why_no_planes(first),
            plain=first is not None and is_plain(first),
            rotation=None if first is None else first.rotation % 360,
            notes=tuple(filter(None, (chosen, guessed, choice.tell_grey(grey), reduced))),
            factor=factor,
            grey=grey,
        )


def demux(container: Any, *streams: Any) -> Iterator[Any]:
    """Yield the packets of streams, and an empty one of each at the end. In damaged files a stream
    may appear late; PyAV only lists it on the next demux."""
    for _ in range(MOST_STREAMS):
        try:
            yield from container.demux(*streams)
            return
        except IndexError:
            continue


def _not_for_opencv(path: str, container: Any, stream: Any, first: Any, sized: bool) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        # a segmentation fault in 5.0.0's binding
        return "opencv crashes on a file name that is not UTF-8"
    if stream.index != container.streams.video[0].index:
        return "opencv would read another track"  # and cannot be set otherwise
    if not sized and first is not None:
        return "its beginning does not state the size of its pictures, so opencv decodes none"
    if _is_interlaced(stream, first):
        # swscale refuses them ("Cannot convert interlaced to progressive frames"), but cv2 ignores
        # that and returns what was in the buffer. Seen with OpenCV 5.0.0, FFmpeg 8.
        return "interlaced: opencv returns black frames"
    if first is not None and (nearest_matrix(first) or int(first.color_trc) not in TRANSFERS):
        return "opencv returns black frames for its colours"
    return ""


def _first_picture(container: Any, stream: Any) -> Any:
    """Return the first picture, which knows more than the container; None if it comes late."""
    if stream.codec_context is None:
        return None
    try:
        for packet in islice(demux(container, stream), FIRST_PICTURE_PACKETS):
            for picture in stream.codec_context.decode(packet):
                return picture
    except av.error.FFmpegError:
        pass  # damaged data is reported when it is read
    return None


def _find_factor(path: str, stream: Any, first: Any, choice: Choice) -> int:
    """Return the fraction at which MJPEG is decoded, if FFmpeg can do it for the first picture."""
    if first is None or stream.codec_context.codec.canonical_name != "mjpeg":
        return 1
    factor = choice.part_of(first.width, first.height)
    if factor == 1 or first.interlaced_frame:
        return 1
    with open_container(path) as container:
        again = container.streams[stream.index]
        decode_reduced(again.codec_context, factor)
        small = _first_picture(container, again)
    whole = reduced_size((first.width, first.height), factor)
    return factor if small is not None and (small.width, small.height) == whole else 1


def decode_reduced(codec: Any, factor: int) -> None:
    """Decode at a fraction of the size. Call it before the first packet."""
    codec.options = {"lowres": str(factor.bit_length() - 1)}


def reduced_size(size: tuple[int, int], factor: int) -> tuple[int, int]:
    """Return width and height of a picture of this size decoded at 1/``factor``."""
    return -(-size[0] // factor), -(-size[1] // factor)


def _choose_grey(
    container: Any, stream: Any, first: Any, duration_s: float | None, choice: Choice
) -> GreyRange | None:
    """Choose a video's grey range from pictures spread over it; for a pipe, the first ones."""
    if first is None or not is_deep_grey(first):
        return None
    pictures, ticks = [first], int((duration_s or 0) / stream.time_base)
    for part in range(1, GREY_LOOKS):
        with suppress(av.error.FFmpegError):
            container.seek((stream.start_time or 0) + ticks * part // GREY_LOOKS, stream=stream)
        pictures += filter(None, [_first_picture(container, stream)])
    from detector.core.sources._grey import choose_for_video

    return choose_for_video(pictures, choice.grey)


def _is_interlaced(stream: Any, first: Any) -> bool:
    """Check the container and the first picture: Matroska and AVI often do not tell."""
    # 0 unknown, 1 progressive, 2 and more: orders of fields. Before PyAV 18.1 the picture tells.
    if int(getattr(stream.codec_context, "field_order", 0)) >= 2:
        return True
    return first is not None and bool(first.interlaced_frame)


def _is_mirrored(picture: Any) -> bool:
    """Return whether the display matrix [a b u; c d v; x y w] mirrors, as some cameras' do."""
    matrix = picture.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return False
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(matrix)[:36])  # 16.16 fixed point
    return bool(a * d - b * c < 0)


def _duration_s(container: Any, stream: Any) -> float | None:
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else None


def _longest_gap_s(container: Any, duration_s: float | None) -> float:
    """Return the longest pause. If stamps count from 0, a slide shown for minutes is kept."""
    if container.format.flags & CLOCK_MAY_JUMP:
        return LONGEST_GAP_S
    return max(LONGEST_GAP_S, duration_s or UNKNOWN_DURATION_S)


def _why(path: str, error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "its name is not valid UTF-8; rename the file"
    try:
        head = _first_bytes(path)
    except OSError as problem:
        return f"cannot be read ({problem.strerror})"
    if not head and path == STANDARD_INPUT:
        if _standard_input().stopped():
            return "nothing arrived on standard input before the run was stopped; run it again"
        return "standard input is empty (0 bytes); check the program that writes to it"
    if not head:
        return "the file is empty (0 bytes); copy or record it again"
    if head[4:8] == b"ftyp":
        return (
            "no moov atom: the recording was cut off before it was finalised; record it again, "
            "or rebuild it from an intact file of the same camera (untrunc)"
        )
    if head.startswith(b"#EXTM3U") and path == STANDARD_INPUT:
        return "a playlist cannot be read from a pipe; give it as a file"
    if head.startswith(b"#EXTM3U"):
        return (
            "nothing in this playlist can be opened (a playlist in a file may not open the "
            "network); give the address of the stream itself (http://HOST/NAME.m3u8)"
        )
    if head.isascii() and not any(byte < 32 and byte not in b"\t\r\n\f" for byte in head):
        return "it is text, not video; give a video file, a picture or a folder of pictures"
    reason = getattr(error, "strerror", None) or str(error)
    if path == STANDARD_INPUT:
        return (
            f"FFmpeg cannot read it ({reason}); raw video (-f rawvideo) has no header with its "
            "size; send it with -f matroska"
        )
    return (
        f"FFmpeg cannot read it ({reason}); check it with ffprobe, or convert it with ffmpeg first"
    )


def _first_bytes(path: str) -> bytes:
    if path == STANDARD_INPUT:
        return _standard_input().beginning(HEAD_BYTES)
    if (stored := open_object(path)) is not None:
        return stored.pread(HEAD_BYTES, 0)
    with open(path, "rb") as file:
        return file.read(HEAD_BYTES)


def no_frame(video: VideoInfo, refused: int) -> SourceError:
    info = video.info
    if not video.decodable:
        return SourceError(
            f"{info.path}: there is no decoder for its codec; convert it with a full FFmpeg: "
            "ffmpeg -i IN OUT.mp4"
        )
    if info.codec == "rawvideo" and not info.width:
        return SourceError(
            f"{info.path}: its pixels are raw, and nothing says how large a picture is; say it: "
            "ffmpeg -f rawvideo -pixel_format gray16le -video_size 640x480 -i IN -c:v ffv1 OUT.mkv"
        )
    what = f"{info.codec} {info.width}x{info.height}"
    return SourceError(
        f"{info.path}: opens ({what}), but no frame can be decoded ({counted(refused, 'packet')} "
        "refused); the file is damaged: copy or record it again"
    )


# How many pictures a second a video has, by what it says of itself. FFmpeg calls all raw streams 25
# a second; H.264's and HEVC's VUI and MPEG-2's sequence header may state the rate.


def is_raw(container: Any) -> bool:
    """Return whether its pictures have no time stamps, so that they are counted."""
    format = container.format
    return int(format.flags) & RAW_FLAGS == RAW_FLAGS or format.name.endswith(PICTURES_IN_A_ROW)


def rate_of(
    path: str, container: Any, stream: Any, wanted: Fraction | None
) -> tuple[Fraction, str]:
    """Return the frame rate, and a sentence if it is a guess. Raises UsageError for a ``wanted``
    rate if the file has a clock."""
    if not is_raw(container):
        if wanted is not None:
            raise UsageError(
                f"{path}: --rate is for raw streams without a clock; this file "
                f"({container.format.name.split(',')[0]}) has one, so omit --rate"
            )
        return _rate_by_clock(stream), ""
    if wanted is not None:
        return wanted, ""
    codec = stream.codec_context
    stated = None if codec is None else codec.framerate
    if stated and stated > MOST_FPS:
        stated = stream.guessed_rate  # MPEG-4 states ticks, and in each picture how many passed
    if stated and stated <= MOST_FPS:
        return Fraction(stated), ""
    return DEFAULT_FPS, (
        f"the stream states no frame rate, so {DEFAULT_FPS} frames per second are assumed; give "
        "the right rate with --rate N"
    )


def time_base_for(fps: Fraction, own: Fraction) -> Fraction:
    """Return a raw stream's time base: its own, if a frame lasts whole ticks of it."""
    return own if (1 / (fps * own)).denominator == 1 else 1 / fps


def _rate_by_clock(stream: Any) -> Fraction:
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and rate <= MOST_FPS:
            return Fraction(rate)
    return Fraction(stream.average_rate or stream.guessed_rate or stream.base_rate or DEFAULT_FPS)
