"""VP9 by libvpx, in WebM, which every browser plays."""

from __future__ import annotations

from detector.core.errors.machine import usable_cores
from detector.core.sinks.video.h264 import YuvFile
from detector.core.sinks.video.sound_rules import SoundRules
from detector.core.sinks.video.stamps import Stamps

CRF = 32  # from 0 to 63; 32 gives the quality of 23 in H.264
QUALITIES = {"fast": "ultrafast", "balanced": "superfast", "small": "fast"}
# Maps x264's presets to libvpx's deadline and speed.
SPEEDS = {
    "ultrafast": ("realtime", "8"),
    "superfast": ("realtime", "7"),
    "veryfast": ("realtime", "6"),
    "faster": ("realtime", "5"),
    "fast": ("good", "5"),
    "medium": ("good", "4"),
    "slow": ("good", "3"),
    "slower": ("good", "2"),
    "veryslow": ("good", "1"),
}


class Vp9File(YuvFile):
    """A VP9 video. Its sound is Opus or Vorbis, the only sound codecs that WebM allows."""

    encoder = "libvpx-vp9"
    sound = SoundRules(
        copied=("opus", "vorbis"),
        encoder="libopus",
        bits_per_s=128_000,
        rates=range(48000, 48001),
        subtitles=("webvtt",),
    )

    def make_stamps(self, longest_gap_s: float) -> Stamps:
        deadline, speed = SPEEDS[self.preset or QUALITIES[self.quality or "balanced"]]
        self.options = {
            "crf": str(CRF if self.crf is None else self.crf),
            "b": "0",  # no bit rate: constant quality
            "deadline": deadline,
            "cpu-used": speed,
            "row-mt": "1",
            "tile-columns": "2",
            "threads": str(min(16, usable_cores())),
        }
        return super().make_stamps(longest_gap_s)
