"""Base of video files, with muxer, sound and trailer. Each subclass has one video codec."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av

from detector.core.sinks.video.sound_rules import BROKEN, Moment, SoundRules
from detector.core.sinks.video.stamps import Stamps
from detector.core.types import Colours, Frame, Planes, SourceInfo

if TYPE_CHECKING:
    from detector.core.sinks.video.tracks import CarriedTracks

# Errors of the muxer or the ADTS filter about a single packet
REFUSED = (av.error.ArgumentError, av.error.InvalidDataError)
INT32 = 2**31 - 1
_TIMECODE = re.compile(r"(\d+):(\d+):(\d+)([:;.])(\d+)")


class VideoFile:
    """A video file at ``path``. The first frame determines the size, and opens the encoder."""

    errors = (av.FFmpegError, OSError)  # only some of PyAV's errors are OSErrors
    sound: SoundRules | None = None  # None: the format has no sound
    tags: tuple[str, ...] | None = None  # tags that the format supports; None: all

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
        """``format``: FFmpeg's name of the muxer. In the other options, None means the default."""
        self.sent = 0  # frames given to the encoder
        self.notes: list[str] = []
        self.muxer_options: dict[str, str] = {}
        self._path, self.format, self.info = path, format, info
        self.quality, self.preset, self.crf = quality, preset, crf
        has_tracks = info.has_audio or info.has_subtitles or info.has_data
        wants_tracks = audio and has_tracks and info.kind == "video"
        self._carry: type[CarriedTracks] | None = None
        if wants_tracks and self.sound is None:
            what = "sound" if info.has_audio else "subtitles" if info.has_subtitles else "data"
            self.notes.append(f"omitted the {what}, which {path.suffix} cannot hold")
        elif wants_tracks:
            from detector.core.sinks.video.tracks import CarriedTracks

            self._carry = CarriedTracks
            for track in info.tracks:
                track.requested = True
        # A damaged AVI may have ticks of more than a second, which MP4 cannot express.
        is_valid_base = 0 < info.time_base <= 1 and info.time_base.denominator <= INT32
        is_valid_rate = Fraction(1, 1000) < info.fps < 1000
        self.fps = info.fps.limit_denominator(100_000) if is_valid_rate else Fraction(25)
        base = info.time_base if is_valid_base else Fraction(1, 90000)
        self.time_base = self.choose_time_base(base)
        self.stamps = self.make_stamps(info.longest_gap_s)
        self.colours: Colours | None = None  # None if the source's pictures are BGR
        self._container: Any = None
        self._noted_tags = False
        self._rewinds = self._behind = 0  # the last frame's ``rewinds`` and ``behind``
        self._stream: Any = None
        self._tracks: CarriedTracks | None = None

    # ---- Methods that a format may override

    def choose_time_base(self, own: Fraction) -> Fraction:
        """Return the time base of the written stamps. ``own``: the source's time base."""
        return own

    def make_stamps(self, longest_gap_s: float) -> Stamps:
        """Return stamps that the container supports. May set ``muxer_options``."""
        return Stamps(self.fps, self.time_base, longest_gap_s)

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        """Add the video stream with an encoder for pictures of this size, and return it."""
        raise NotImplementedError

    def fill(self, frame: Frame) -> Any:
        """Convert a frame's picture for the encoder."""
        raise NotImplementedError

    def omits(self, ticks: int) -> bool:
        """Return whether a frame at this time is omitted, because it is too soon after the last."""
        return False

    def add(self, frame: Frame, joined: bool = False) -> None:
        """Encode a frame with its sound. ``joined``: close the gap before it. Raises ``errors``."""
        ticks = self._convert_to_ticks(frame.pts)
        if not joined and self.omits(ticks):
            return
        self._rewinds, self._behind = frame.rewinds, frame.behind
        if self._container is None:
            self._start(frame)
        picture = self.fill(frame)
        picture.pts = self.stamps.stamp(ticks, frame.index, joined)
        picture.time_base = self.time_base
        picture.duration = self.stamps.duration
        self._mux(self._stream.encode(picture))
        self.sent += 1
        self._mux_tracks()

    def _flush(self) -> Iterable[Any]:
        packets: Iterable[Any] = self._stream.encode(None)
        return packets

    def _mux(self, packets: Iterable[Any]) -> None:
        self._container.mux(packets)

    def _convert_to_ticks(self, pts: int) -> int:
        if self.time_base == self.info.time_base:
            return pts
        return round(pts * self.info.time_base / self.time_base)

    def _start(self, frame: Frame) -> None:
        """Open the file with all tracks; if that fails, with one track, then with none."""
        attempts: list[int | None] = [None, 1, 0] if self._carry else [0]
        for most in attempts:
            try:
                self._begin_file(frame, most)
                return
            except BROKEN as error:
                is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
                if most == 0 or is_full:
                    raise
                with suppress(*BROKEN):
                    self.close()
                if most is not None:
                    self.notes.append(f"no track besides the video could be copied: {error}")

    def _begin_file(self, frame: Frame, most: int | None) -> None:
        """Open the file. ``most``: limit of tracks other than the video; None: no limit."""
        self._container = av.open(
            str(self._path), "w", format=self.format, options=self.muxer_options
        )
        self._write_tags(frame)
        if isinstance(frame.picture, Planes):
            self.colours = frame.picture.colours
        self._stream = self.add_stream(self._container, *frame.size)
        if most != 0 and self.sound is not None and self._carry is not None:
            self._tracks = self._carry(
                self.info,
                self._container,
                self._make_moment(self._convert_to_ticks(frame.pts)),
                rules=self.sound,
                # In formats without edit lists, a negative sound stamp would shift all frames.
                preroll=self.format in ("mp4", "mov"),
                suffix=self._path.suffix,
                most=most,
            )
        self._container.start_encoding()
        if self._tracks is not None:
            self.notes += self._tracks.notes

    def _write_tags(self, first: Frame) -> None:
        tags = shift_tags(self.info, first.pts)
        kept = {key: text for key, text in tags.items() if self.tags is None or key in self.tags}
        if self.format in ("mp4", "mov") and not _is_timecode(kept.get("timecode"), self.info.fps):
            kept.pop("timecode", None)
        self._container.metadata.update(kept)
        if (omitted := [key for key in tags if key not in kept]) and not self._noted_tags:
            self._noted_tags = True
            self.notes.append(
                f"omitted tags that {self._path.suffix} cannot hold: {', '.join(omitted)}"
            )

    def _mux_tracks(self) -> None:
        stamps = self.stamps
        if self._tracks is None or stamps.last is None:
            return
        end, (_, shift_s) = stamps.last + stamps.duration, self._make_moment(stamps.shift)
        self._tracks.mux(self._container, self._make_moment(end + stamps.shift), shift_s, REFUSED)

    def _make_moment(self, ticks: int) -> Moment:
        return self._rewinds, ticks * self.time_base + self._behind * self.info.time_base

    def finish(self) -> None:
        """Flush the encoders and write the trailer, which makes the file playable."""
        if self._container is None:
            return
        self._mux(self._flush())
        self._mux_tracks()
        if self._tracks is not None:
            self.notes += self._tracks.finish(self._container)
        if self.stamps.replaced:
            self.notes.append(
                f"{self.stamps.replaced} time stamps repeated or jumped and were replaced"
            )
        if self.stamps.shortened:
            self.notes.append(
                f"{self.stamps.shortened} pauses between frames are longer than "
                f"{self._path.suffix} can hold and were shortened; write a .mkv to keep them"
            )
        self.close()

    def close(self) -> None:
        container, tracks = self._container, self._tracks
        self._container = self._tracks = None
        try:
            if container is not None:
                container.close()
        finally:
            if tracks is not None:
                tracks.close()

    def count_packets(self) -> int:
        with av.open(str(self._path)) as container:
            return sum(1 for packet in container.demux(video=0) if packet.size)


def _is_timecode(text: str | None, fps: Fraction) -> bool:
    """Return whether QuickTime supports this time code. Drop-frame needs a multiple of 29.97 Hz."""
    match = _TIMECODE.fullmatch(text or "")
    return match is not None and (match[4] == ":" or round(fps) % 30 == 0)


def shift_tags(info: SourceInfo, pts: int) -> dict[str, str]:
    """Return the source's tags with the time code of the output's first frame (at ``pts``)."""
    tags = dict(info.tags)
    if match := _TIMECODE.fullmatch(tags.get("timecode", "")):
        rate, dropped = max(1, round(info.fps)), 0
        hours, minutes, seconds, frame = map(int, match.group(1, 2, 3, 5))
        minutes += hours * 60
        if match[4] != ":":  # at 29.97 Hz, two numbers are skipped in 9 of 10 minutes
            dropped = rate // 15
        frame += (minutes * 60 + seconds) * rate - dropped * (minutes - minutes // 10)
        frame += round((pts - info.start_pts) * info.time_base * info.fps)
        if dropped:
            tens, rest = divmod(frame, 600 * rate - 9 * dropped)
            frame += dropped * (9 * tens + max(0, rest - dropped) // (60 * rate - dropped))
        second, frame = divmod(frame % (24 * 3600 * rate), rate)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        tags["timecode"] = f"{clock}{match[4]}{frame:02}"
    return tags
