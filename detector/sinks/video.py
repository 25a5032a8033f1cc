"""Annotated H.264 video: the source's own time stamps, its sound, and a count of what really arrived in the file."""

from __future__ import annotations

import errno
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from detector.errors import OutputError, UsageError
from detector.sinks._audio import BROKEN, AudioTrack
from detector.sinks._canvas import Canvas
from detector.sinks._stamps import Stamps
from detector.sinks.base import Partial, Sink, output_errors
from detector.types import Detections, Frame, SourceInfo

FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
FOREIGN = (av.FFmpegError, OSError)  # what PyAV raises: only some of its errors are OSErrors
REFUSED = (av.error.ArgumentError, av.error.InvalidDataError)  # one packet: by muxer or ADTS filter
BT601, BT709, LIMITED = 6, 1, 1  # ITU-T H.273: matrix smpte170m; primaries and transfer bt709; tv range
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

    def __init__(self, path: Path, *, preset: str = "superfast", crf: int = 23, audio: bool = True) -> None:
        super().__init__(path)
        self._format = FORMATS.get(self.path.suffix.lower(), "")
        if not self._format:
            raise UsageError(f"a video cannot be called {self.path.name}; end its name in {', '.join(FORMATS)}")
        self._options = {"preset": preset, "crf": str(crf), "x264-params": "chromaloc=2"}  # 2: top left, cv2's choice
        self._wants_audio = audio
        self._partial: Partial | None = None
        self._container: Any = None
        self._audio: AudioTrack | None = None
        self._sent = 0

    def open(self, info: SourceInfo) -> None:
        self._info = info
        sane_base = 0 < info.time_base.numerator <= INT32 and info.time_base.denominator <= INT32
        self._time_base = info.time_base if sane_base else Fraction(1, 90000)
        self._fps = info.fps.limit_denominator(100_000) if Fraction(1, 1000) < info.fps < 1000 else Fraction(25)
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
        self._container = av.open(str(self._partial.path), "w", format=self._format, options=options)
        self._stream = self._video_stream(*frame.image.shape[:2])
        if audio:
            start_s = self._ticks(frame.pts) * self._time_base
            # Matroska has no edit list: a negative stamp of the sound would move the frames away from 0.
            preroll = self._format != "matroska"
            self._audio = AudioTrack(self._info.path, self._container, start_s, preroll=preroll)
        self._container.start_encoding()

    def _video_stream(self, height: int, width: int) -> Any:
        if max(height, width) > LARGEST:
            raise OutputError(f"cannot write {self.path}: H.264 holds {LARGEST} pixels a side; use --save pictures")
        even_height, even_width = height + height % 2, width + width % 2  # 4:2:0 has one colour for 2x2 pixels
        self._canvas = Canvas((height, width), (even_height, even_width), self._time_base)
        if height * width > HUGE_PIXELS:
            self._options["preset"] = "ultrafast"  # 1.1 GB at 8192x8192, however many frames
            self.notes.append(f"encoded with x264's ultrafast preset to save memory at {width}x{height}")
        stream = self._container.add_stream("libx264", rate=self._fps, options=self._options)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = even_width, even_height, "yuv420p"
        context.time_base = self._time_base
        context.flags |= av.codec.context.Flags.frame_duration  # else the last frame lasts one tick
        context.colorspace, context.color_primaries, context.color_trc = BT601, BT709, BT709
        context.color_range = LIMITED
        if self._info.sample_aspect_ratio > 0:
            stream.sample_aspect_ratio = context.sample_aspect_ratio = self._info.sample_aspect_ratio
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
            self.notes.append(f"{self._stamps.replaced} time stamps stood still or jumped and were replaced")
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
