"""How many pictures a second a video has, by what it says of itself. FFmpeg calls all raw streams
25 a second; H.264's and HEVC's VUI and MPEG-2's sequence header may state the rate."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from detector.core.errors import UsageError

DEFAULT_FPS = Fraction(25)  # where nothing is known; FFmpeg's own default for raw streams
# AVFMT_NOTIMESTAMPS and AVFMT_GENERIC_INDEX: what FFmpeg's demuxers of raw streams have in common.
RAW_FLAGS = 0x0180
PICTURES_IN_A_ROW = "_pipe"  # ends the names of demuxers such as that of JPEG after JPEG
MOST_FPS = 1000  # more is the resolution of a clock, as DV's 60000


def is_raw(container: Any) -> bool:
    """Whether its pictures carry no time stamps, so that they are counted."""
    format = container.format
    return int(format.flags) & RAW_FLAGS == RAW_FLAGS or format.name.endswith(PICTURES_IN_A_ROW)


def rate_of(
    path: str, container: Any, stream: Any, wanted: Fraction | None
) -> tuple[Fraction, str]:
    """Frames a second, and a sentence where they are a guess. Raises UsageError for a ``wanted``
    rate where the file has a clock."""
    if not is_raw(container):
        if wanted is not None:
            raise UsageError(
                f"{path}: --rate is for raw streams without a clock; this file "
                f"({container.format.name.split(',')[0]}) has one, so omit --rate"
            )
        return _rate_by_clock(stream), ""
    if wanted is not None:
        return wanted, ""
    codec = stream.codec_context
    stated = None if codec is None else codec.framerate
    if stated and stated > MOST_FPS:
        stated = stream.guessed_rate  # MPEG-4 states ticks, and in each picture how many passed
    if stated and stated <= MOST_FPS:
        return Fraction(stated), ""
    return DEFAULT_FPS, (
        f"the stream states no frame rate, so {DEFAULT_FPS} frames per second are assumed; give "
        "the right rate with --rate N"
    )


def time_base_for(fps: Fraction, own: Fraction) -> Fraction:
    """Of the pts of a raw stream: its own, where a frame lasts whole ticks of it."""
    return own if (1 / (fps * own)).denominator == 1 else 1 / fps


def _rate_by_clock(stream: Any) -> Fraction:
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and rate <= MOST_FPS:
            return Fraction(rate)
    return Fraction(stream.average_rate or stream.guessed_rate or stream.base_rate or DEFAULT_FPS)
