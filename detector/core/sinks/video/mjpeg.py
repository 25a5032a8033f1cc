"""Motion JPEG and PCM in AVI at a constant rate, for old and simple programs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import av
from av.video.reformatter import VideoReformatter

from detector.core.sinks.video.canvas import fit_inside
from detector.core.sinks.video.file import VideoFile
from detector.core.sinks.video.sound_rules import SoundRules
from detector.core.sinks.video.stamps import Stamps
from detector.core.types import Frame

QUALITY = "3"  # from 2 (best) to 31
MOST_REPEATED = 30_000  # frames that a pause may span; FFmpeg's muxer refuses 60,000


class MjpegFile(VideoFile):
    tags = ("album", "artist", "comment", "copyright", "date", "genre", "timecode", "title")
    sound = SoundRules(
        copied=(), encoder="pcm_s16le", bits_per_s=0, rates=range(8000, 48001), gapless=True
    )

    def choose_time_base(self, own: Fraction) -> Fraction:
        return 1 / self.fps

    def make_stamps(self, longest_gap_s: float) -> Stamps:
        longest = min(longest_gap_s, float(MOST_REPEATED / self.fps))
        return Stamps(self.fps, self.time_base, longest)

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        self._size, self._reformatter = (height, width), VideoReformatter()
        options = {"qmin": QUALITY, "qmax": QUALITY}
        stream = container.add_stream("mjpeg", rate=self.fps, options=options)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = width, height, "yuvj420p"
        context.time_base = self.time_base
        return stream

    def fill(self, frame: Frame) -> Any:
        picture = av.VideoFrame.from_ndarray(fit_inside(frame.image, *self._size), "bgr24")
        return self._reformatter.reformat(picture, format="yuvj420p")
