"""Find a video's frame rate in its own data. FFmpeg assumes 25 FPS for all raw streams; H.264's and
HEVC's VUI and MPEG-2's sequence header may state the rate."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from detector.core.errors import UsageError

DEFAULT_FPS = Fraction(25)  # if nothing is known; FFmpeg's own default for raw streams
# AVFMT_NOTIMESTAMPS and AVFMT_GENERIC_INDEX, which FFmpeg's demuxers of raw streams share.
RAW_FLAGS = 0x0180
PICTURES_IN_A_ROW = "_pipe"  # suffix of demuxers of picture sequences, such as JPEGs
MOST_FPS = 1000  # larger values are the resolution of a clock, such as DV's 60000


def is_raw(container: Any) -> bool:
    """Return whether its pictures have no time stamps, so that they are counted."""
    format = container.format
    return int(format.flags) & RAW_FLAGS == RAW_FLAGS or format.name.endswith(PICTURES_IN_A_ROW)


def rate_of(
    path: str, container: Any, stream: Any, wanted: Fraction | None
) -> tuple[Fraction, str]:
    """Return the frame rate, and a sentence if it is a guess. Raises UsageError for a ``wanted``
    rate if the file has a clock."""
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
        # MPEG-4 states ticks, and in each picture how many have passed
        stated = stream.guessed_rate
    if stated and stated <= MOST_FPS:
        return Fraction(stated), ""
    return DEFAULT_FPS, (
        f"the stream states no frame rate, so {DEFAULT_FPS} frames per second are assumed; give "
        "the right rate with --rate N"
    )


def time_base_for(fps: Fraction, own: Fraction) -> Fraction:
    """Return a raw stream's time base: its own, if a frame lasts whole ticks of it."""
    return own if (1 / (fps * own)).denominator == 1 else 1 / fps


def _rate_by_clock(stream: Any) -> Fraction:
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and rate <= MOST_FPS:
            return Fraction(rate)
    return Fraction(stream.average_rate or stream.guessed_rate or stream.base_rate or DEFAULT_FPS)
