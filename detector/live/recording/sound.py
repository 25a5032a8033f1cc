"""Transcodes sound that MP4 cannot contain, such as the G.711 of many cameras, to AAC."""

from __future__ import annotations

import io
from contextlib import suppress
from fractions import Fraction
from typing import Any

import av

from detector.core.sinks.video.audio import count_channels
from detector.live.recording.samples import NS, SOUND, Sample, Track

BITS_PER_S_AND_CHANNEL = 48_000
GAP_NS = NS // 5  # if a packet is this much later than the end of earlier sound, there was a gap


class AacSound:
    """Transcodes a track's packets to AAC. ``__init__`` raises ValueError or av.FFmpegError."""

    def __init__(self, stream: Any) -> None:
        source = stream.codec_context
        channels, rate = count_channels(stream), source.sample_rate
        self._decoder: Any = av.CodecContext.create(source.codec.name, "r")
        self._decoder.sample_rate = rate
        self._decoder.layout = source.layout.name
        if source.extradata:
            self._decoder.extradata = source.extradata
        self._holder = av.open(io.BytesIO(), "w", format="nut")
        self._rate = rate if 8000 <= rate <= 48000 else 48000
        encoder: Any = self._holder.add_stream("aac", rate=self._rate)
        encoder.codec_context.layout = "mono" if channels == 1 else "stereo"
        encoder.codec_context.bit_rate = BITS_PER_S_AND_CHANNEL * min(channels, 2)
        encoder.codec_context.flags |= av.codec.context.Flags.global_header
        encoder.codec_context.open()
        self._holder.start_encoding()
        self._encoder = encoder
        self.track = Track(encoder)
        self.track.time_base = Fraction(1, self._rate)
        self._zero_ns: int | None = None  # time of the encoder's sample 0
        self._decoded = 0  # samples per channel so far, at the source's rate
        self._source_rate = rate
        self._raw: Sample | None = None  # the last packet

    def convert(self, raw: Sample) -> list[Sample]:
        end_ns = self._decoded * NS // self._source_rate
        if self._zero_ns is None or raw.dts_ns > self._zero_ns + end_ns + GAP_NS:
            self._zero_ns = raw.dts_ns - end_ns
        elif raw.dts_ns < self._zero_ns + end_ns - GAP_NS:
            return []  # overlaps earlier sound: a clock was set back
        self._raw, samples = raw, list[Sample]()
        with suppress(av.FFmpegError, ValueError):
            for frame in self._decoder.decode(av.Packet(raw.data)):
                frame.pts, frame.time_base = self._decoded, Fraction(1, self._source_rate)
                self._decoded += frame.samples
                samples += map(self._sample, self._encoder.encode(frame))
        return samples

    def flush(self) -> list[Sample]:
        if self._raw is None:
            return []
        with suppress(av.FFmpegError, ValueError):
            return [*map(self._sample, self._encoder.encode(None))]
        return []

    def _sample(self, packet: Any) -> Sample:
        raw = self._raw
        assert self._zero_ns is not None
        assert raw is not None
        at_ns = self._zero_ns + round(int(packet.pts or 0) * packet.time_base * NS)
        return Sample(
            track=SOUND,
            data=bytes(packet),
            dts_ns=at_ns,
            pts_ns=at_ns,
            duration_ns=round(int(packet.duration or 0) * packet.time_base * NS),
            key=True,
            arrived_ns=raw.arrived_ns,
            utc_s=raw.utc_s,
        )
