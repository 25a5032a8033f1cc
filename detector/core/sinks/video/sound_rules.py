"""The sound, subtitle and data codecs that each format of video files supports."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import av

# Codecs that players expect in each format and that we copy. (MP4's muxer would accept others, such
# as Vorbis.)
COPIED_IN_MOV = ("aac", "mp3", "ac3", "eac3", "alac")
COPIED_IN_TS = ("aac", "mp3", "ac3", "eac3")
COPIED_IN_FLV = ("aac",)  # FLV supports MP3 only at three rates
COPIED = (*COPIED_IN_MOV, "opus", "flac")
# (how often the source's clock has been set back, the clock's time in seconds)
Moment = tuple[int, Fraction]
BROKEN = (av.FFmpegError, OSError, ValueError, IndexError)  # raised for damaged or missing sound


@dataclass(frozen=True, slots=True)
class SoundRules:
    """Rules of a format. ``copied``: sound codecs to copy; ``encoder`` encodes others. ``rates``:
    in samples/s. ``gapless``: gaps must be filled with silence, since there are no stamps.
    ``most``: limit of sound tracks."""

    copied: tuple[str, ...]
    encoder: str
    bits_per_s: int
    rates: range
    gapless: bool = False
    most: int | None = None
    subtitles: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
