"""H.264 by x264, in MP4, QuickTime, Matroska, MPEG-TS and FLV, and a base class for YUV formats."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import av

from detector.core.errors.machine import usable_cores
from detector.core.sinks.video.canvas import Canvas
from detector.core.sinks.video.file import INT32, VideoFile
from detector.core.sinks.video.sound_rules import (
    COPIED,
    COPIED_IN_FLV,
    COPIED_IN_MOV,
    COPIED_IN_TS,
    SoundRules,
)
from detector.core.sinks.video.stamps import Stamps
from detector.core.stages.planes import planes_of
from detector.core.types import Frame, Planes

# Numbers of ITU-T H.273 (matrix smpte170m; primaries, transfer bt709) and FFmpeg (AVCOL_RANGE).
BT601, BT709, LIMITED, FULL = 6, 1, 1, 2
# MP4 stores the time between two frames, and the offset from dts to pts, in 31 bits. FFmpeg's muxer
# doubles the ticks per second until there are at least this many.
MP4_TICKS_PER_S = 10_000
# If pauses may be longer than this, we use no B-frames: their offsets would span several pauses.
SPARSE_S = 7 * 24 * 3600
REORDERED = 8  # with three B-frames, x264 reorders fewer frames than this at a time
HUGE_PIXELS = 4096 * 4096  # with larger pictures, x264's look-ahead would need gigabytes
MOST_THREADS = 16  # each needs memory for a frame or two
# x264 settings for --quality. "balanced" is better than any preset: on clips of 360p to 720p it
# takes 0.6 to 0.7 times the CPU time and 0.5 to 1.2 times the bytes of "superfast" at crf 23, with
# equal PSNR and SSIM (docs/settings.md; `scripts/bench qualities`). It omits the slowest tools
# (sub-pixel motion, look-ahead, adaptive quantization), and keeps cheap tools that save bytes
# (B-frames in a fixed pattern, CABAC, the deblocking filter, 8x8 transforms).
QUALITIES = {
    "fast": {"preset": "ultrafast", "crf": "23"},
    "balanced": {
        "preset": "ultrafast",
        "crf": "22.5",
        "bf": "3",
        "b_strategy": "0",
        # sync-lookahead=0: there is no look-ahead, and its thread would add a delay of four frames.
        "x264-params": "cabac=1:deblock=0,0:8x8dct=1:partitions=i8x8,i4x4:sync-lookahead=0",
    },
    "small": {"preset": "veryfast", "crf": "23"},
}
CRF = "23"  # the crf used with --preset
TIME_BASES = {"mpegts": Fraction(1, 90_000), "flv": Fraction(1, 1000)}  # the only ones allowed
# FFmpeg may not recognize MPEG-TS in a file of fewer packets than this, so we append null packets.
TS_MIN_PACKETS, TS_NULL = 32, b"\x47\x1f\xff\x10" + b"\xff" * 184
SOUNDS = {"mov": COPIED_IN_MOV, "mpegts": COPIED_IN_TS, "flv": COPIED_IN_FLV}
SUBTITLES = {
    "mp4": ("mov_text",),
    "mov": ("mov_text",),
    "matroska": (
        "subrip",
        "ass",
        "ssa",
        "webvtt",
        "hdmv_pgs_subtitle",
        "dvd_subtitle",
        "dvb_subtitle",
    ),
    "mpegts": ("dvb_subtitle", "dvb_teletext"),
}
DATA = {"mp4": ("bin_data",), "mpegts": ("klv", "timed_id3")}
TAGS = {"mpegts": (), "flv": ("timecode", "title")}


class YuvFile(VideoFile):
    """A video of YUV 4:2:0 pictures. For 1280x720, cv2 converts BGR in 0.25 ms, and swscale through
    PyAV in 1.5 ms (`scripts/bench stages`). cv2 converts to BT.601, as the file's tags state."""

    encoder: str
    options: dict[str, str]
    lent = False  # see ``Canvas``; True if the encoder uses only a picture's pixels

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        even = height + height % 2, width + width % 2  # 4:2:0 has one colour per 2x2 pixels
        self._canvas = Canvas((height, width), even, self.time_base, lent=self.lent)
        stream = container.add_stream(self.encoder, rate=self.fps, options=self.options)
        context = stream.codec_context
        context.height, context.width, context.pix_fmt = *even, "yuv420p"
        context.time_base = self.time_base
        # Otherwise the last frame would have a duration of one tick.
        context.flags |= av.codec.context.Flags.frame_duration
        context.colorspace, context.color_primaries, context.color_trc = BT601, BT709, BT709
        context.color_range = LIMITED
        if (colours := self.colours) is not None:
            # Set even unspecified colours, so that players treat source and output alike.
            context.colorspace, context.color_primaries = colours.matrix, colours.primaries
            context.color_trc = colours.transfer
            context.color_range = FULL if colours.full_range else LIMITED
        if self.info.sample_aspect_ratio > 0:
            ratio = self.info.sample_aspect_ratio
            stream.sample_aspect_ratio = context.sample_aspect_ratio = ratio
        return stream

    def fill(self, frame: Frame) -> Any:
        picture, own = frame.picture, self.colours
        if own is None:
            return self._canvas.fill(frame.image)
        # The file states the first picture's range and matrix; convert later pictures to these.
        if not isinstance(picture, Planes) or picture.colours[3:] != own[3:]:
            picture = planes_of(frame.image, own)
        return self._canvas.fill(picture)


class H264File(YuvFile):
    encoder = "libx264"
    lent = True
    sound = SoundRules(copied=COPIED, encoder="aac", bits_per_s=160_000, rates=range(8000, 48001))

    def choose_time_base(self, own: Fraction) -> Fraction:
        return TIME_BASES.get(self.format, own)

    def make_stamps(self, longest_gap_s: float) -> Stamps:
        self.sound = replace(
            self.sound,
            copied=SOUNDS.get(self.format, COPIED),
            subtitles=SUBTITLES.get(self.format, ()),
            data=DATA.get(self.format, ()),
            most=1 if self.format == "flv" else None,
        )
        self.tags = TAGS.get(self.format)
        self.options = self._choose_options()
        if self.format == "matroska" or self.format in TIME_BASES:
            return Stamps(self.fps, self.time_base, longest_gap_s)
        self.muxer_options["movflags"] = "+faststart"
        ticks_per_s = 1 / self.time_base
        while ticks_per_s < MP4_TICKS_PER_S:
            ticks_per_s *= 2
        if longest_gap_s * ticks_per_s > INT32 and self.time_base.numerator == 1:
            ticks_per_s = 1 / self.time_base
            self.muxer_options["video_track_timescale"] = str(self.time_base.denominator)
        sparse = longest_gap_s > SPARSE_S
        if sparse:
            self.options["bf"] = "0"
        reach = int((INT32 - 1) / (ticks_per_s * self.time_base))
        if sparse:
            return Stamps(self.fps, self.time_base, longest_gap_s, reach)
        # B-frames need a margin, because the encoder gives the first frames a negative dts.
        return Stamps(self.fps, self.time_base, longest_gap_s, reach * 15 // 16, REORDERED)

    def _choose_options(self) -> dict[str, str]:
        if self.preset is None:
            options = dict(QUALITIES[self.quality or "balanced"])
        else:
            options = {"preset": self.preset, "crf": CRF}
        if self.crf is not None:
            options["crf"] = str(self.crf)
        # Only the decoder's planes have closed captions. For consistency, we always drop captions.
        options["a53cc"] = "0"
        return options

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        if height * width > HUGE_PIXELS and self.options["preset"] != "ultrafast":
            self.options["preset"] = "ultrafast"  # needs 1.1 GB at 8192x8192
            self.notes.append(
                f"encoded with x264's ultrafast preset to save memory at {width}x{height}"
            )
        if self.colours is None:
            # 2 is "top left", where cv2 samples chroma. Planes mostly have the default, "left".
            own = self.options.get("x264-params")
            self.options["x264-params"] = "chromaloc=2" if own is None else f"chromaloc=2:{own}"
        stream = super().add_stream(container, height, width)
        if height * width <= HUGE_PIXELS:
            # With a thread per frame, ``encode`` returns before the picture is encoded. With PyAV's
            # default, a thread per slice, it waits: we measured 0.75 to 0.85 of the FPS.
            stream.codec_context.thread_type = "FRAME"
            stream.codec_context.thread_count = min(MOST_THREADS, max(1, usable_cores() * 3 // 2))
        return stream

    def finish(self) -> None:
        super().finish()
        if self.format == "mpegts" and self.sent:
            with self._path.open("ab") as file:
                missing = TS_MIN_PACKETS - file.tell() // len(TS_NULL)
                file.write(TS_NULL * max(0, missing))  # players ignore null packets
