"""Converts the packets of one connection to a camera into samples of MP4 tracks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import av

from detector.core.sinks.video.sound_rules import COPIED
from detector.core.sources._picture_size import claimed_size
from detector.live.recording.headers import decode_size, make_aac_config, read_sets, split_adts
from detector.live.recording.line import ArrivalLine
from detector.live.recording.samples import NS, SOUND, VIDEO, Sample, Track
from detector.live.recording.sound import AacSound

# Codecs that players accept in MP4. MJPEG plays in VLC, mpv and FFmpeg, but not in browsers.
PLAYED = ("h264", "hevc", "av1", "vp9", "mpeg4", "mpeg2video", "mjpeg")
BYTE_STREAMS = ("h264", "hevc")
MOST_WITHOUT_DTS = 20  # packets to wait for the first dts; more than any codec reorders
USUAL_FPS = 25  # assumed if packets have no duration
# Formats without timestamps, for which FFmpeg assumes 25 FPS.
CLOCKLESS = ("mpjpeg", "mjpeg")


@dataclass(slots=True)
class Packet:
    """A camera's packet, with a copy of the bytes."""

    stream: int  # index in the connection
    data: bytes
    pts: int | None
    dts: int | None
    time_base: Fraction
    duration: int
    key: bool
    arrived_ns: int
    utc_s: float

    @staticmethod
    def copy(packet: Any, arrived_ns: int, utc_s: float) -> Packet:
        """Copy PyAV's packet; the decoder needs the original unchanged."""
        return Packet(
            stream=packet.stream.index,
            data=bytes(packet),
            pts=packet.pts,
            dts=packet.dts,
            time_base=packet.time_base,
            duration=int(packet.duration or 0),
            key=bool(packet.is_keyframe),
            arrived_ns=arrived_ns,
            utc_s=utc_s,
        )


class RecordedStreams:
    """The tracks of a connection. ``notes`` tell why a stream cannot be recorded. The feed's thread
    must create the object."""

    def __init__(self, streams: Iterable[Any]) -> None:
        self.video: Track | None = None
        self.sound: Track | None = None
        self.notes: list[str] = []
        self.changed = False  # size or parameter sets changed, so a new file must begin
        self.line = ArrivalLine()
        self._video_index = self._sound_index = -1
        self._aac: AacSound | None = None
        self._adts = False
        self._without_dts: list[Packet] | None = []  # video packets before the first dts, then None
        self._clockless = False
        for stream in streams:
            if stream.type == "video" and self._video_index < 0:
                self._take_video(stream)
            elif stream.type == "audio" and self._sound_index < 0:
                self._take_sound(stream)
        self._sets = self._first_sets()

    def _take_video(self, stream: Any) -> None:
        self._video_index = stream.index
        codec = _codec_name(stream)
        if codec not in PLAYED:
            self.notes.append(f"its video ({codec or 'unknown'}) cannot be stored in MP4")
            return
        self.video = Track(stream)
        self._clockless = stream.container.format.name in CLOCKLESS

    def _take_sound(self, stream: Any) -> None:
        self._sound_index = stream.index
        codec = _codec_name(stream)
        try:
            if codec in COPIED:
                self.sound = Track(stream)
                if codec == "aac" and not self.sound.extradata:
                    self._adts = True
                    context = stream.codec_context
                    self.sound.extradata = make_aac_config(context.sample_rate, context.channels)
            else:
                self._aac = AacSound(stream)
                self.sound = self._aac.track
        except (ValueError, av.FFmpegError) as error:
            self.sound = None
            self.notes.append(f"its sound ({codec or 'unknown'}) cannot be recorded: {error}")

    def _first_sets(self) -> bytes | None:
        video = self.video
        if video is None or video.codec not in BYTE_STREAMS or not video.extradata:
            return None
        return read_sets(video.codec, video.extradata)

    @property
    def tracks(self) -> list[Track]:
        if self.video is None:
            return []
        return [self.video] if self.sound is None else [self.video, self.sound]

    def samples(self, packet: Packet) -> list[Sample]:
        """Return the samples of a packet. Check ``changed`` before writing them."""
        if packet.stream == self._video_index and self.video is not None:
            video = self.video
            if self._clockless:
                return [self._video_sample(_by_arrival(packet), video)]
            return [self._video_sample(one, video) for one in self._fill_first_dts(packet)]
        if packet.stream == self._sound_index and self.sound is not None:
            return self._sound_samples(packet)
        return []

    def flush(self) -> list[Sample]:
        return self._aac.flush() if self._aac is not None else []

    def _fill_first_dts(self, packet: Packet) -> list[Packet]:
        """Derive the dts that first packets lack (B-frames over RTSP) from the first known dts."""
        if self._without_dts is None:
            return [packet]
        self._without_dts.append(packet)
        known = packet.dts
        if known is None and len(self._without_dts) < MOST_WITHOUT_DTS:
            return []
        first, self._without_dts = self._without_dts, None
        if known is not None:
            step = packet.duration or max(1, round(1 / (USUAL_FPS * packet.time_base)))
            for back, one in enumerate(reversed(first)):
                one.dts = known - back * step
            shown = [one.pts for one in first if one.pts is not None]
            if first[0].pts is None and shown:
                first[0].pts = max(min(shown) - step, known - (len(first) - 1) * step)
        return first

    def _to_sample(self, packet: Packet, track: int) -> Sample:
        duration_ns = round(packet.duration * packet.time_base * NS)
        pts_ns, dts_ns = self.line.place(
            track, packet.pts, packet.dts, packet.time_base, duration_ns, packet.arrived_ns
        )
        return Sample(
            track=track,
            data=packet.data,
            dts_ns=dts_ns,
            pts_ns=pts_ns,
            duration_ns=duration_ns,
            key=packet.key,
            arrived_ns=packet.arrived_ns,
            utc_s=packet.utc_s,
        )

    def _video_sample(self, packet: Packet, video: Track) -> Sample:
        if video.codec == "mjpeg":
            packet.key = True
            size = claimed_size(packet.data)
            if size is not None and size != video.size:
                self.changed, video.size = True, size
        elif packet.key and video.codec in BYTE_STREAMS:
            self._check_parameter_sets(packet, video)
        return self._to_sample(packet, VIDEO)

    def _check_parameter_sets(self, packet: Packet, video: Track) -> None:
        if video.extradata and video.extradata[0] == 1:
            return  # avcC occurs only in files, whose picture size never changes
        sets = read_sets(video.codec, packet.data)
        if sets is None or (sets == self._sets and video.size is not None):
            return
        self.changed = True
        self._sets = video.extradata = sets
        video.size = decode_size(video.codec, sets, packet.data) or video.size

    def _sound_samples(self, packet: Packet) -> list[Sample]:
        sample = self._to_sample(packet, SOUND)
        if self._aac is not None:
            return self._aac.convert(sample)
        if self._adts:
            split = split_adts(sample.data)
            if split is None or self.sound is None:
                return []
            data, config = split
            if self.sound.extradata != config:
                self.changed, self.sound.extradata = True, config
            sample = replace(sample, data=data)
        return [replace(sample, key=True)]


def _by_arrival(packet: Packet) -> Packet:
    """Set pts and dts to the packet's arrival time. Its codec must not have B-frames."""
    return replace(
        packet,
        pts=packet.arrived_ns // 1000,
        dts=packet.arrived_ns // 1000,
        time_base=Fraction(1, 1_000_000),
        duration=0,
    )


def _codec_name(stream: Any) -> str:
    context = stream.codec_context
    return context.codec.canonical_name if context is not None else ""
