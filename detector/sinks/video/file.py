"""What all video files share: muxer, sound, and how they end. A subclass is one format.

``VideoFile`` knows no codec. A format says how its stream is made, how a picture is put into the
form that its encoder reads, which stamps its container can hold, and which sound.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from detector.sinks.video.audio import BROKEN, AudioTrack, SoundRules
from detector.sinks.video.stamps import Stamps
from detector.types import Colours, Frame, Planes, SourceInfo

REFUSED = (av.error.ArgumentError, av.error.InvalidDataError)  # one packet: by muxer or ADTS filter
INT32 = 2**31 - 1


class VideoFile:
    """The file ``path`` in the making. The encoder opens with the first frame, which gives the
    size.
    """

    errors = (av.FFmpegError, OSError)  # what PyAV raises; only some of its errors are OSErrors
    sound: SoundRules | None = None  # None: the format has none

    def __init__(
        self,
        path: Path,
        format: str,
        info: SourceInfo,
        *,
        quality: str | None,
        preset: str | None,
        crf: int | None,
        audio: bool,
    ) -> None:
        """``quality``, ``preset``, ``crf``: as the user gave them; None: the format's own."""
        self.sent = 0  # frames given to the encoder
        self.notes: list[str] = []
        self.muxer_options: dict[str, str] = {}
        self._path, self.format, self.info = path, format, info
        self.quality, self.preset, self.crf = quality, preset, crf
        self._wants_audio = audio and info.has_audio and info.kind == "video"
        if self._wants_audio and self.sound is None:
            self._wants_audio = False
            self.notes.append(f"{path.suffix} holds no sound: it was left out")
        if self._wants_audio and info.sound is not None:
            info.sound.want()
        # A tick of more than a second (a damaged AVI) makes a timescale below 1, which MP4 lacks.
        sane_base = 0 < info.time_base <= 1 and info.time_base.denominator <= INT32
        sane_rate = Fraction(1, 1000) < info.fps < 1000
        self.fps = info.fps.limit_denominator(100_000) if sane_rate else Fraction(25)
        self.time_base = self.choose_time_base(info.time_base if sane_base else Fraction(1, 90000))
        self.stamps = self.make_stamps(info.longest_gap_s)
        self.colours: Colours | None = None  # of the source's planes; None: its pictures are BGR
        self._container: Any = None
        self._stream: Any = None
        self._audio: AudioTrack | None = None

    # ---- what a format says

    def choose_time_base(self, of_source: Fraction) -> Fraction:
        """Seconds per tick of the stamps that are written."""
        return of_source

    def make_stamps(self, longest_gap_s: float) -> Stamps:
        """Stamps that the container can hold. It may set ``muxer_options``."""
        return Stamps(self.fps, self.time_base, longest_gap_s)

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        """The video stream, its encoder set up for pictures of this size."""
        raise NotImplementedError

    def fill(self, frame: Frame) -> Any:
        """The picture of a frame as the one that the encoder reads."""
        raise NotImplementedError

    def leaves_out(self, ticks: int) -> bool:
        """Whether a frame at this time comes too soon after the last for the format."""
        return False

    # ---- frames

    def add(self, frame: Frame, joined: bool = False) -> None:
        """Encodes one frame, and the sound up to its end. Raises ``errors``.

        ``joined``: it follows right behind the last one, whatever time lies between them.
        """
        ticks = self._to_ticks(frame.pts)
        if not joined and self.leaves_out(ticks):
            return
        if self._container is None:
            self._start(frame)
        picture = self.fill(frame)
        picture.pts = self.stamps.place(ticks, frame.index, joined)
        picture.time_base = self.time_base
        picture.duration = self.stamps.duration
        self._mux(self._stream.encode(picture))
        self.sent += 1
        self._mux_audio()

    def _flush(self) -> Iterable[Any]:
        """The last packets of the encoder."""
        packets: Iterable[Any] = self._stream.encode(None)
        return packets

    def _mux(self, packets: Iterable[Any]) -> None:
        self._container.mux(packets)

    def _to_ticks(self, pts: int) -> int:
        if self.time_base == self.info.time_base:
            return pts
        return round(pts * self.info.time_base / self.time_base)

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
        self._container = av.open(
            str(self._path), "w", format=self.format, options=self.muxer_options
        )
        if isinstance(frame.picture, Planes):
            self.colours = frame.picture.colours
        self._stream = self.add_stream(self._container, *frame.size)
        if audio and self.sound is not None:
            self._audio = AudioTrack(
                self.info.path,
                self._container,
                self._to_ticks(frame.pts) * self.time_base,
                rules=self.sound,
                # Without an edit list a negative stamp of the sound would shift all frames.
                preroll=self.format in ("mp4", "mov"),
                sound=self.info.sound,
            )
        self._container.start_encoding()

    def _mux_audio(self) -> None:
        """Muxes the sound up to the end of the last frame."""
        stamps = self.stamps
        if self._audio is None or stamps.last is None:
            return
        if stamps.went_back:
            self._audio.end("the source's clock was set back")
        end = (stamps.last + stamps.duration + stamps.shift) * self.time_base
        while True:
            try:
                for packet in self._audio.packets(end, stamps.shift * self.time_base):
                    self._container.mux(packet)
                return
            except REFUSED:  # that packet is a gap in the sound; try the next one
                self._audio.refused += 1

    def finish(self) -> None:
        """Flushes the encoders and writes the trailer, after which the file is playable."""
        if self._container is None:
            return
        self._mux(self._flush())
        self._mux_audio()
        if self._audio is not None:
            self._container.mux(self._audio.flush())
            self.notes += self._audio.notes()
        if self.stamps.replaced:
            self.notes.append(
                f"{self.stamps.replaced} time stamps stood still or jumped and were replaced"
            )
        if self.stamps.shortened:
            self.notes.append(
                f"{self.stamps.shortened} pauses between frames are longer than "
                f"{self._path.suffix} can hold and were shortened; write a .mkv to keep them"
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
