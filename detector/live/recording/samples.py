"""The data types of a recording: a ``Track`` describes a stream, and a ``Sample`` is one packet.
Both own their memory, because their connection may close before they are written."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av

NS = 1_000_000_000  # nanoseconds per second
USUAL_NS = NS // 25  # assumed duration of a picture, if unknown
VIDEO, SOUND = 0, 1  # Sample.track
LATEST_NS = 10 * NS  # longest wait for a picture's result


@dataclass(slots=True)
class Sample:
    """One packet. ``*_ns`` are times of ``time.perf_counter_ns``."""

    track: int  # VIDEO or SOUND
    data: bytes
    dts_ns: int
    pts_ns: int
    duration_ns: int  # 0: unknown
    key: bool
    arrived_ns: int
    utc_s: float


class Track:
    """A stream, independent of its connection. ``extradata`` and ``size`` may be changed."""

    def __init__(self, stream: Any) -> None:
        """Copy PyAV's stream. Raises ValueError or av.FFmpegError if it cannot be copied."""
        # PyAV frees a stream with its container, so the copy needs its own container.
        self._holder = av.open(io.BytesIO(), "w", format="nut")
        self.template: Any = self._holder.add_stream_from_template(stream, opaque=True)
        context = stream.codec_context
        self.codec: str = context.codec.canonical_name
        self.time_base: Fraction = stream.time_base or Fraction(1, 90000)
        self.extradata: bytes | None = context.extradata
        # Width and height; None for sound, or if still unknown.
        self.size: tuple[int, int] | None = None
        if stream.type == "video" and context.width and context.height:
            self.size = context.width, context.height

    def add_to(self, container: Any) -> Any:
        """Add the stream to a container. Raises ValueError if the container rejects the codec."""
        stream = container.add_stream_from_template(self.template, opaque=True)
        context = stream.codec_context
        if self.extradata:
            context.extradata = self.extradata
        if self.size:
            context.width, context.height = self.size
        if self.codec == "hevc":
            context.codec_tag = "hvc1"  # Apple's players accept only this tag
        return stream


Tracks = Sequence[Track]  # [VIDEO], or [VIDEO, SOUND]
