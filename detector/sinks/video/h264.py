"""Encoder and muxer: one H.264 file of the frames, with the source's sound."""

from __future__ import annotations

import errno
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from detector.sinks.video.audio import BROKEN, AudioTrack
from detector.sinks.video.canvas import Canvas
from detector.sinks.video.stamps import Stamps
from detector.types import Frame, SourceInfo

REFUSED = (av.error.ArgumentError, av.error.InvalidDataError)  # one packet: by muxer or ADTS filter
# ITU-T H.273: matrix smpte170m; primaries and transfer bt709; tv range.
BT601, BT709, LIMITED = 6, 1, 1
INT32 = 2**31 - 1
HUGE_PIXELS = 4096 * 4096  # beyond, x264's look-ahead would hold gigabytes of frames


class H264File:
    """The file ``path`` in the making. The encoder opens with the first frame, which gives the
    size.

    A frame of 1280x720 takes 0.25 ms to convert with cv2 and some 5 ms to encode with "superfast"
    on 2 cores ("veryfast" takes 9 ms and makes a file a third smaller). swscale, through PyAV,
    takes 1.5 ms for the same conversion (`scripts/bench stages`). cv2 knows only BT.601, so the
    file is tagged so.
    """

    errors = (av.FFmpegError, OSError)  # what PyAV raises; only some of its errors are OSErrors

    def __init__(
        self, path: Path, format: str, info: SourceInfo, *, preset: str, crf: int, audio: bool
    ) -> None:
        self.sent = 0  # frames given to the encoder
        self.notes: list[str] = []
        self._path, self._format, self._info = path, format, info
        # chromaloc 2 is "top left", where cv2 samples the chroma.
        self._options = {"preset": preset, "crf": str(crf), "x264-params": "chromaloc=2"}
        self._wants_audio = audio and info.has_audio and info.kind == "video"
        sane_base = 0 < info.time_base.numerator <= INT32 and info.time_base.denominator <= INT32
        self._time_base = info.time_base if sane_base else Fraction(1, 90000)
        sane_rate = Fraction(1, 1000) < info.fps < 1000
        self._fps = info.fps.limit_denominator(100_000) if sane_rate else Fraction(25)
        self._stamps = Stamps(self._fps, self._time_base, info.longest_gap_s)
        self._container: Any = None
        self._audio: AudioTrack | None = None

    def add(self, frame: Frame) -> None:
        """Encodes one frame, and the sound up to its end. Raises ``errors``."""
        if self._container is None:
            self._start(frame)
        picture = self._canvas.fill(frame.image)
        picture.pts = self._stamps.place(self._to_ticks(frame.pts), frame.index)
        picture.duration = self._stamps.duration
        self._container.mux(self._stream.encode(picture))
        self.sent += 1
        self._mux_audio()

    def _to_ticks(self, pts: int) -> int:
        if self._time_base == self._info.time_base:
            return pts
        return round(pts * self._info.time_base / self._time_base)

    def _start(self, frame: Frame) -> None:
        """Opens encoder, muxer and audio; if the audio is what fails, a second time without it."""
        try:
            self._begin_file(frame, audio=self._wants_audio)
        except BROKEN as error:
            if not self._wants_audio or getattr(error, "errno", None) in (
                errno.ENOSPC,
                errno.EDQUOT,
            ):
                raise
            with suppress(*BROKEN):
                self.close()
            self.notes.append(f"the audio could not be copied: {error}")
            self._begin_file(frame, audio=False)

    def _begin_file(self, frame: Frame, *, audio: bool) -> None:
        options = {"movflags": "+faststart"} if self._format != "matroska" else {}
        self._container = av.open(str(self._path), "w", format=self._format, options=options)
        self._stream = self._add_video_stream(*frame.image.shape[:2])
        if audio:
            start_s = self._to_ticks(frame.pts) * self._time_base
            # Matroska has no edit list: a negative stamp of the sound would shift all frames.
            preroll = self._format != "matroska"
            self._audio = AudioTrack(self._info.path, self._container, start_s, preroll=preroll)
        self._container.start_encoding()

    def _add_video_stream(self, height: int, width: int) -> Any:
        # 4:2:0 has one colour for 2x2 pixels.
        even_height, even_width = height + height % 2, width + width % 2
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
            ratio = self._info.sample_aspect_ratio
            stream.sample_aspect_ratio = context.sample_aspect_ratio = ratio
        return stream

    def _mux_audio(self) -> None:
        """Muxes the sound up to the end of the last frame."""
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
            except REFUSED:  # that packet is a gap in the sound; try the next one
                self._audio.refused += 1

    def finish(self) -> None:
        """Flushes the encoders and writes the trailer, after which the file is playable."""
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
        self.close()

    def close(self) -> None:
        """Closes muxer and audio, finished or not."""
        container, audio = self._container, self._audio
        self._container = self._audio = None
        try:
            if container is not None:
                container.close()
        finally:
            if audio is not None:
                audio.close()

    def count_packets(self) -> int:
        """Video packets that can be read back from the file."""
        with av.open(str(self._path)) as container:
            return sum(1 for packet in container.demux(video=0) if packet.size)
