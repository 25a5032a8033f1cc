"""Annotated H.264 video: the source's own time stamps, its sound, and a count of what really arrived in the file."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from detector.errors import OutputError, UsageError
from detector.sinks.base import Partial, Sink, output_errors
from detector.types import Detections, Frame, Image, SourceInfo

# ----------------------------------------------------------------------
# BGR pictures into the one YUV picture that the encoder reads.


class Canvas:
    """One YUV 4:2:0 picture, BT.601, limited range, used for every frame: x264 copies it before ``encode`` returns.

    ``size``: [h, w] of the pictures that come; ``even``: of what is encoded, padded at the right and bottom by the
    edge. The planes are copied, 0.04 ms at 1280x720, because cv2 writes them without gaps and the encoder's have
    some. (PyAV 18's ``from_numpy_buffer`` would spare that, but misplaces them unless the height divides by 4.)
    """

    def __init__(self, size: tuple[int, int], even: tuple[int, int], time_base: Fraction) -> None:
        self._size = size
        height, width = self._even = even
        self._padded = np.empty((height, width, 3), np.uint8) if size != even else None
        self.yuv = np.empty(
            (height * 3 // 2, width), np.uint8
        )  # Y, then U, then V, each without gaps
        self._picture = av.VideoFrame(width, height, "yuv420p")
        self._picture.time_base = time_base
        y, u, v = (_pixels(plane) for plane in self._picture.planes)
        rows, quarter = self.yuv[height:].reshape(-1), height * width // 4
        self._copies = (
            (y, self.yuv[:height]),
            (u, rows[:quarter].reshape(u.shape)),
            (v, rows[quarter:].reshape(v.shape)),
        )

    def fill(self, image: Image) -> Any:
        """Converts u8 BGR [h, w, 3]; returns the encoder's picture, the same one each time."""
        if image.shape[:2] != self._size:
            image = _fit(image, *self._size)
        if self._padded is not None:
            right, bottom = self._even[1] - self._size[1], self._even[0] - self._size[0]
            image = cv2.copyMakeBorder(
                image, 0, bottom, 0, right, cv2.BORDER_REPLICATE, dst=self._padded
            )
        cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420, dst=self.yuv)
        for plane, converted in self._copies:
            np.copyto(plane, converted)
        return self._picture


def _pixels(plane: Any) -> Image:
    """A writable view [h, w] of a plane, without the gap at the end of its lines."""
    return np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]


def _fit(image: Image, height: int, width: int) -> Image:
    """A picture of another size, scaled to lie whole and centred in [height, width], on black."""
    scale = min(height / image.shape[0], width / image.shape[1])
    inner_height, inner_width = (
        max(1, round(image.shape[0] * scale)),
        max(1, round(image.shape[1] * scale)),
    )
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    fitted = np.zeros((height, width, 3), np.uint8)
    inner = fitted[top : top + inner_height, left : left + inner_width]
    inner[:] = cv2.resize(image, (inner_width, inner_height), interpolation=cv2.INTER_LINEAR)
    return fitted


# ----------------------------------------------------------------------
# The source's pts, moved to 0 and made to rise: what a container insists on.

BACK_S = 1  # more than this is a clock that was set anew (files put one behind the other), not frames in disorder


class Stamps:
    """Turns each frame's pts into the pts that is written, both in ticks of the source's time base.

    A frame that does not come after the last one, or more than ``longest_gap_s`` after it (on top of the frames that
    ``--stride`` left out), is put one nominal duration after it and counted in ``replaced``. After a jump the clock
    goes on from there; after a small step back the source's own stamps count again as soon as they are ahead.
    """

    def __init__(self, fps: Fraction, time_base: Fraction, longest_gap_s: float) -> None:
        self.nominal = max(1, round(1 / (fps * time_base)))  # ticks per frame
        self._back, self._gap = round(BACK_S / time_base), round(longest_gap_s / time_base)  # ticks
        self.shift = 0  # written = source - shift
        self.last: int | None = None
        self._last_index = 0
        self.duration = self.nominal  # of the last frame, until the next one comes
        self.replaced = 0
        self.went_back = False  # the clock itself was set back, by more than a jump

    def place(self, pts: int, index: int) -> int:
        if self.last is None:
            self.shift = pts
            self.last = 0
        else:
            steps = max(1, index - self._last_index)
            self.duration = steps * self.nominal
            self.last = self._after(self.last, pts)
        self._last_index = index
        return self.last

    def _after(self, last: int, pts: int) -> int:
        gap = pts - self.shift - last
        if 0 < gap <= self._gap + self.duration:
            return last + gap
        self.replaced += 1
        placed = last + self.duration
        if gap > 0 or -gap > self._back:
            self.shift = pts - placed
            self.went_back = self.went_back or gap < 0
        return placed


# ----------------------------------------------------------------------
# The sound of the source, cut to the frames that are written: copied where MP4 holds it, AAC otherwise.

# Copied as they are: what players expect in MP4. (The muxer would take others too, such as Vorbis.)
COPIED = ("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac")
AAC_BITS_PER_S = 160_000
BROKEN = (av.FFmpegError, OSError, ValueError, IndexError)  # what a damaged or silent file raises


class AudioTrack:
    """Reads the first audio stream of ``path`` a second time, beside the frames, and makes packets for ``output``.

    All times are exact fractions of a second on the source's clock. Memory is bounded: one packet is read ahead.
    Broken audio ends the track or leaves a gap, and ``notes`` say so; the video goes on.

    ``preroll``: also keep the packet that lies across ``start_s`` or ends on it. Its stamp becomes negative, which
    MP4 hides by an edit list; without it the sound begins with the first packet after the first frame. Either way
    what is heard keeps its place beside the frames.
    """

    def __init__(self, path: str, output: Any, start_s: Fraction, *, preroll: bool) -> None:
        self.refused = 0  # packets that decoder or muxer did not take
        self._ended = ""  # why the sound ends before the frames do
        self._held: Any = None  # packet or decoded frame that begins after the frames so far
        self._last_pts: int | None = None
        self._container = av.open(path)
        try:
            self._source = self._container.streams.audio[0]
            if self._source.codec_context is None:
                raise ValueError("nothing here can decode it")
            self.copied = self._source.codec_context.codec.canonical_name in COPIED
            self._encodes = not self.copied
            self.stream = self._copy_stream(output) if self.copied else self._aac_stream(output)
            self._seek_before(start_s)
        except BaseException:
            self._container.close()
            raise
        self._reader = self._read_from(start_s, preroll)

    def _copy_stream(self, output: Any) -> Any:
        return output.add_stream_from_template(self._source)

    def _aac_stream(self, output: Any) -> Any:
        rate, channels = self._source.codec_context.sample_rate, _channels(self._source)
        stream = output.add_stream("aac", rate=rate if 8000 <= rate <= 48000 else 48000)
        stream.codec_context.layout = "mono" if channels == 1 else "stereo"
        stream.codec_context.bit_rate = AAC_BITS_PER_S
        return stream

    def _seek_before(self, start_s: Fraction) -> None:
        """Skips what lies well before the first frame. Without an index the file is read from its start."""
        if start_s - (self._source.start_time or 0) * self._source.time_base > 10:
            with suppress(*BROKEN):
                self._container.seek(
                    int((start_s - 5) / self._source.time_base), stream=self._source
                )

    def _read_from(self, start_s: Fraction, preroll: bool) -> Iterator[Any]:
        for item, duration_s in self._items():
            if item.pts is not None:
                begin_s = item.pts * item.time_base
                if begin_s >= start_s or (preroll and begin_s + duration_s >= start_s):
                    yield item

    def _items(self) -> Iterator[tuple[Any, Fraction]]:
        """Packets to copy, or decoded frames to encode, each with its duration in seconds."""
        for packet in self._container.demux(self._source):
            if self.copied:
                if packet.size:  # the last one is empty: flush the decoder
                    yield packet, (packet.duration or 0) * packet.time_base
                continue
            try:
                frames = packet.decode()
            except av.InvalidDataError:  # a packet that does not decode is a gap in the sound
                self.refused += 1
                continue
            for frame in frames:
                yield frame, Fraction(frame.samples, frame.sample_rate)

    def packets(self, until_s: Fraction, shift_s: Fraction) -> Iterator[Any]:
        """What begins before ``until_s`` and was not handed out yet, moved ``shift_s`` earlier, ready to be muxed."""
        while (item := self._peek()) is not None and item.pts * item.time_base < until_s:
            self._held = None
            yield from self._moved(item, shift_s)

    def _peek(self) -> Any:
        if self._held is None:
            try:
                self._held = next(self._reader, None)
            except BROKEN as error:
                self.end(f"it is damaged ({error})")
        return self._held

    def _moved(self, item: Any, shift_s: Fraction) -> list[Any]:
        ticks = round(shift_s / item.time_base)
        if self._last_pts is not None and item.pts - ticks <= self._last_pts:
            return []  # lies in what a jump of the clock cut out
        self._last_pts = item.pts = item.pts - ticks
        if not self.copied:
            return self._encoded(item)
        item.dts = item.pts  # audio is never reordered; some containers leave dts out
        item.stream = self.stream
        return [item]

    def _encoded(self, frame: Any) -> list[Any]:
        """AAC packets. After a refusal (a layout that it cannot mix down) PyAV's resampler must not be used again."""
        try:
            return list(self.stream.encode(frame))
        except BROKEN as error:
            self._encodes = False
            self.end(f"it cannot be encoded as AAC ({error})")
            return []

    def flush(self) -> list[Any]:
        """The last packets of the AAC encoder."""
        return self._encoded(None) if self._encodes else []

    def end(self, why: str) -> None:
        """No more sound from here on, with a note."""
        self._ended = self._ended or f"the audio ends early: {why}"
        self._held, self._reader = None, iter(())

    def notes(self) -> list[str]:
        """What became of the sound, where it is not whole."""
        refused = (
            f"audio packets that could not be taken over: {self.refused}" if self.refused else ""
        )
        return [note for note in (self._ended, refused) if note]

    def close(self) -> None:
        self._container.close()


def _channels(source: Any) -> int:
    """How many channels are to be decoded. Raises ValueError where they lie in an order of their own (some 7.1)."""
    layout = source.codec_context.layout
    # PyAV 18.1 frees such a list of channels with every object that shares it, and the process dies of that. So this
    # one is never given back, and frames, which have such objects too, are not decoded.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(layout))
    if (
        " channels (" in layout.name
    ):  # "8 channels (FL+FR+FC+LFE+SL+SR+BL+BR)"; known orders are "7.1" or "5.1(side)"
        raise ValueError(
            f"{layout.name} cannot be mixed down here; make a copy in stereo: ffmpeg -i IN -ac 2 COPY"
        )
    return int(layout.nb_channels)


FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
FOREIGN = (av.FFmpegError, OSError)  # what PyAV raises: only some of its errors are OSErrors
REFUSED = (av.error.ArgumentError, av.error.InvalidDataError)  # one packet: by muxer or ADTS filter
BT601, BT709, LIMITED = (
    6,
    1,
    1,
)  # ITU-T H.273: matrix smpte170m; primaries and transfer bt709; tv range
INT32 = 2**31 - 1
LARGEST = 16384  # pixels a side, x264's limit
HUGE_PIXELS = 4096 * 4096  # beyond, x264's look-ahead would hold gigabytes of frames


class VideoSink(Sink):
    """One H.264 file. The encoder opens with the first frame, which says how large the pictures are.

    A frame of 1280x720 costs 0.25 ms to convert with cv2 and some 5 ms to encode with "superfast" on 2 cores
    ("veryfast": 9 ms, and a file a third smaller). swscale, through PyAV, takes 1.5 ms for the same conversion
    (`scripts/bench stages`). cv2 knows only BT.601, so BT.601 is what the file is tagged with.
    """

    name = "video"
    suffix = ".mp4"

    def __init__(
        self, path: Path, *, preset: str = "superfast", crf: int = 23, audio: bool = True
    ) -> None:
        super().__init__(path)
        self._format = FORMATS.get(self.path.suffix.lower(), "")
        if not self._format:
            raise UsageError(
                f"a video cannot be called {self.path.name}; end its name in {', '.join(FORMATS)}"
            )
        self._options = {
            "preset": preset,
            "crf": str(crf),
            "x264-params": "chromaloc=2",
        }  # 2: top left, cv2's choice
        self._wants_audio = audio
        self._partial: Partial | None = None
        self._container: Any = None
        self._audio: AudioTrack | None = None
        self._sent = 0

    def open(self, info: SourceInfo) -> None:
        self._info = info
        sane_base = 0 < info.time_base.numerator <= INT32 and info.time_base.denominator <= INT32
        self._time_base = info.time_base if sane_base else Fraction(1, 90000)
        self._fps = (
            info.fps.limit_denominator(100_000)
            if Fraction(1, 1000) < info.fps < 1000
            else Fraction(25)
        )
        self._stamps = Stamps(self._fps, self._time_base, info.longest_gap_s)
        self._partial = Partial(self.path, info.path)

    def write(self, frame: Frame, detections: Detections) -> None:
        assert self._partial is not None, "write before open"
        with output_errors(self.path, FOREIGN):
            if self._container is None:
                self._start(frame)
            picture = self._canvas.fill(frame.image)
            picture.pts = self._stamps.place(self._ticks(frame.pts), frame.index)
            picture.duration = self._stamps.duration
            self._container.mux(self._stream.encode(picture))
            self._sent += 1
            self._mux_audio()

    def _ticks(self, pts: int) -> int:
        if self._time_base == self._info.time_base:
            return pts
        return round(pts * self._info.time_base / self._time_base)

    def _start(self, frame: Frame) -> None:
        """Opens encoder, muxer and audio; without the audio where that is what fails."""
        wanted = self._wants_audio and self._info.has_audio and self._info.kind == "video"
        try:
            self._begin_file(frame, audio=wanted)
        except BROKEN as error:
            if not wanted or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise
            with suppress(*BROKEN):
                self._end_file()
            self.notes.append(f"the audio could not be taken over: {error}")
            self._begin_file(frame, audio=False)

    def _begin_file(self, frame: Frame, *, audio: bool) -> None:
        assert self._partial is not None
        options = {"movflags": "+faststart"} if self._format != "matroska" else {}
        self._container = av.open(
            str(self._partial.path), "w", format=self._format, options=options
        )
        self._stream = self._video_stream(*frame.image.shape[:2])
        if audio:
            start_s = self._ticks(frame.pts) * self._time_base
            # Matroska has no edit list: a negative stamp of the sound would move the frames away from 0.
            preroll = self._format != "matroska"
            self._audio = AudioTrack(self._info.path, self._container, start_s, preroll=preroll)
        self._container.start_encoding()

    def _video_stream(self, height: int, width: int) -> Any:
        if max(height, width) > LARGEST:
            raise OutputError(
                f"cannot write {self.path}: H.264 holds {LARGEST} pixels a side; use --save pictures"
            )
        even_height, even_width = (
            height + height % 2,
            width + width % 2,
        )  # 4:2:0 has one colour for 2x2 pixels
        self._canvas = Canvas((height, width), (even_height, even_width), self._time_base)
        if height * width > HUGE_PIXELS:
            self._options["preset"] = "ultrafast"  # 1.1 GB at 8192x8192, however many frames
            self.notes.append(
                f"encoded with x264's ultrafast preset to save memory at {width}x{height}"
            )
        stream = self._container.add_stream("libx264", rate=self._fps, options=self._options)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = even_width, even_height, "yuv420p"
        context.time_base = self._time_base
        context.flags |= av.codec.context.Flags.frame_duration  # else the last frame lasts one tick
        context.colorspace, context.color_primaries, context.color_trc = BT601, BT709, BT709
        context.color_range = LIMITED
        if self._info.sample_aspect_ratio > 0:
            stream.sample_aspect_ratio = context.sample_aspect_ratio = (
                self._info.sample_aspect_ratio
            )
        return stream

    def _mux_audio(self) -> None:
        """The sound up to the end of the last frame."""
        if self._audio is None or self._stamps.last is None:
            return
        if self._stamps.went_back:
            self._audio.end("the source's clock was set back")
        end = (self._stamps.last + self._stamps.duration + self._stamps.shift) * self._time_base
        while True:
            try:
                for packet in self._audio.packets(end, self._stamps.shift * self._time_base):
                    self._container.mux(packet)
                return
            except REFUSED:  # that packet is a gap in the sound, and the next one is tried
                self._audio.refused += 1

    def close(self) -> Path:
        if self._partial is None:
            return self.path
        if not self._sent:
            raise OutputError(f"cannot write {self.path}: no frame came, so there is no video")
        with output_errors(self.path, FOREIGN):
            self._finish()
            arrived = _count_packets(self._partial.path)
        if arrived != self._sent:
            raise OutputError(
                f"{self.path}: {self._sent} frames were sent, {arrived} arrived in the file; the disk may be failing, "
                "write elsewhere with -o"
            )
        self._partial.commit()
        self._partial = None
        return self.path

    def _finish(self) -> None:
        """Flushes the encoders and writes the trailer: from here on the temporary file is playable."""
        if self._container is None:
            return
        self._container.mux(self._stream.encode(None))
        self._mux_audio()
        if self._audio is not None:
            self._container.mux(self._audio.flush())
            self.notes += self._audio.notes()
        if self._stamps.replaced:
            self.notes.append(
                f"{self._stamps.replaced} time stamps stood still or jumped and were replaced"
            )
        self._end_file()

    def _end_file(self) -> None:
        container, audio = self._container, self._audio
        self._container = self._audio = None
        try:
            if container is not None:
                container.close()
        finally:
            if audio is not None:
                audio.close()

    def abort(self) -> Path | None:
        partial, self._partial = self._partial, None
        if partial is None:
            return None
        with suppress(Exception):
            self._finish()
        with suppress(Exception):
            self._end_file()
        with suppress(Exception):  # what cannot be read back is not worth keeping
            if self._sent and _count_packets(partial.path) > 0:
                partial.release()
                return partial.path
        partial.discard()
        return None


def _count_packets(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for packet in container.demux(video=0) if packet.size)
