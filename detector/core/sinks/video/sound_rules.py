"""What a format of video files does with the source's sound and subtitles."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import av

# Codecs that players expect in MP4; they are copied. (The muxer would take others too, such as
# Vorbis.) QuickTime has no Opus and no FLAC.
COPIED_IN_MOV = ("aac", "mp3", "ac3", "eac3", "alac")
COPIED_IN_TS = ("aac", "mp3", "ac3", "eac3")
COPIED_IN_FLV = ("aac",)  # and MP3, but only at three rates
COPIED = (*COPIED_IN_MOV, "opus", "flac")
# How often the source's clock was set back before, and seconds on it.
Moment = tuple[int, Fraction]
BROKEN = (av.FFmpegError, OSError, ValueError, IndexError)  # what damaged or missing audio raises


@dataclass(frozen=True, slots=True)
class SoundRules:
    """What a format allows. ``copied``: codecs kept; ``encoder`` encodes others. ``rates``:
    samples/s. ``gapless``: no stamps, so gaps are filled with silence. ``most``: tracks."""

    copied: tuple[str, ...]
    encoder: str
    bits_per_s: int
    rates: range
    gapless: bool = False
    most: int | None = None
    subtitles: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
