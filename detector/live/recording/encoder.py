"""Encode with x264 without look-ahead: the encoder holds no pictures that a kill would lose."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import cv2
import numpy as np

from detector.core.sinks.video.h264 import BT601, BT709, LIMITED
from detector.core.types import Image
from detector.live.recording.samples import NS, VIDEO, Sample, Track

TICKS_PER_S = 90_000
KEY_NS = 2 * NS  # longest time between key frames; files and clips begin at key frames
THREADS = 2  # detection needs the other cores


def to_yuv(image: Image) -> Image:
    """Convert BGR [h, w, 3] to I420 [h * 3 / 2, w], with half the bytes. Odd sizes are padded."""
    height, width = image.shape[:2]
    if height % 2 or width % 2:
        image = cv2.copyMakeBorder(image, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420), np.uint8)


class Encoder:
    def __init__(
        self, size: tuple[int, int], aspect_ratio: Fraction, *, preset: str, crf: int
    ) -> None:
        self.size = size
        # The encoder needs a container that owns its stream; the container is never written.
        self._holder = av.open(io.BytesIO(), "w", format="nut")
        stream: Any = self._holder.add_stream("libx264", rate=25)
        context = stream.codec_context
        context.options = {
            "preset": preset,
            "crf": str(crf),
            "tune": "zerolatency",
            "forced-idr": "1",
            "g": "100000",  # ``encode`` sets key frames by time
            "x264-params": "chromaloc=2:scenecut=0",
        }
        context.height, context.width = size
        context.pix_fmt = "yuv420p"
        context.time_base = Fraction(1, TICKS_PER_S)
        context.thread_count = THREADS
        context.flags |= av.codec.context.Flags.global_header
        context.colorspace, context.color_primaries, context.color_trc = BT601, BT709, BT709
        context.color_range = LIMITED
        if aspect_ratio > 0:
            stream.sample_aspect_ratio = context.sample_aspect_ratio = aspect_ratio
        self._context = context
        self._holder.start_encoding()
        self.track = Track(stream)
        self.track.time_base = Fraction(1, TICKS_PER_S)
        self._start_ns: int | None = None
        self._last = -1
        self._key_ns = 0

    def encode(self, yuv: Image, arrived_ns: int, utc_s: float, *, key: bool) -> list[Sample]:
        """Encode one picture, stamped with its arrival. ``key``: force a key frame."""
        if self._start_ns is None:
            self._start_ns = arrived_ns
        ticks = max((arrived_ns - self._start_ns) * TICKS_PER_S // NS, self._last + 1)
        self._last = ticks
        height, width = self.size
        picture = av.VideoFrame.from_ndarray(yuv, format="yuv420p").reformat(width, height)
        picture.pts, picture.time_base = ticks, Fraction(1, TICKS_PER_S)
        if key or ticks == 0 or arrived_ns - self._key_ns >= KEY_NS:
            picture.pict_type = av.video.frame.PictureType.I
            self._key_ns = arrived_ns
        samples = []
        for packet in self._context.encode(picture):
            shown_ns = self._start_ns + -(-int(packet.pts or 0) * NS // TICKS_PER_S)
            samples.append(
                Sample(
                    track=VIDEO,
                    data=bytes(packet),
                    dts_ns=shown_ns,
                    pts_ns=shown_ns,
                    duration_ns=0,
                    key=packet.is_keyframe,
                    arrived_ns=arrived_ns,
                    utc_s=utc_s,
                )
            )
        return samples

    def close(self) -> None:
        self._holder.close()
