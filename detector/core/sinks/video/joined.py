"""Join separately encoded parts into one H.264 video, without re-encoding.

We keep the packets of each part in their order, but compute new times from the source's time
stamps, as in a video of one run. The sound is copied from the source. As in x264, the dts of the
n-th stored packet is the pts of the picture at place n - ``delay`` in display order. ``delay`` is
the most places by which a picture is stored after its place in display order. Every part begins
with an IDR picture, and all parts have the same parameter sets, so the result is a valid stream.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from detector.core.errors.text import counted
from detector.core.sinks._partial import output_errors
from detector.core.sinks.video import VideoSink
from detector.core.sinks.video.file import VideoFile
from detector.core.sinks.video.h264 import H264File
from detector.core.types import Frame

SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".ts", ".flv")


class UnjoinableError(Exception):
    """Parts cannot be joined. The message says why, as a clause."""


class JoinedVideoSink(VideoSink):
    """A video with one of ``SUFFIXES``, filled with ``join`` instead of ``write``."""

    def _choose_file(self) -> Callable[..., VideoFile]:
        return JoinedFile

    def join(
        self,
        parts: Sequence[Path],
        frames: NDArray[np.int64],
        size: tuple[int, int],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Join the parts. ``frames``: [n, 2], each frame's number and pts in the source. ``size``:
        (height, width). ``watch``: called regularly. Raises UnjoinableError and OutputError."""
        assert isinstance(self._file, JoinedFile)
        with output_errors(self.path, self._file.errors):
            self._file.join(parts, frames, size, watch)


class JoinedFile(H264File):
    _template = Path()  # the first part

    def join(
        self,
        parts: Sequence[Path],
        frames: NDArray[np.int64],
        size: tuple[int, int],
        watch: Callable[[], None],
    ) -> None:
        orders = _read_orders(parts, watch)
        if (count := sum(map(len, orders))) != len(frames):
            raise UnjoinableError(f"the parts hold {counted(count, 'picture')} of {len(frames)}")
        delay = max(at - rank for order in orders for at, rank in enumerate(order))
        self._template = parts[0]
        packets = _read_packets(parts, orders)
        rank, packet = next(packets)
        # For each picture in display order: its time stamp and duration, in ticks of the output.
        stamps, durations = array("q"), array("q")
        for at in range(len(frames)):
            watch()
            number, pts = frames[at].tolist()
            if at == 0:
                self._start(Frame(number, pts, 0.0, np.empty((*size, 3), np.uint8)))
            stamps.append(self.stamps.stamp(self._convert_to_ticks(pts), number))
            durations.append(self.stamps.duration)
            while packet is not None and rank <= at >= delay:
                stored = self.sent - delay
                packet.pts, packet.duration = stamps[rank], durations[rank]
                packet.dts = (
                    stamps[stored]
                    if stored >= 0
                    else stamps[self.sent] - (stamps[delay] - stamps[0])
                )
                packet.time_base, packet.stream = self.time_base, self._stream
                self._mux([packet])
                self.sent += 1
                rank, packet = next(packets, (0, None))
            self._mux_tracks()

    def add_stream(self, container: Any, height: int, width: int) -> Any:
        with av.open(str(self._template)) as first:
            # With ``opaque``, PyAV sets up no encoder.
            stream = container.add_stream_from_template(first.streams.video[0], opaque=True)
        stream.time_base, stream.codec_context.framerate = self.time_base, self.fps
        return stream

    def _flush(self) -> Sequence[Any]:
        return ()


def _read_orders(parts: Sequence[Path], watch: Callable[[], None]) -> list[list[int]]:
    """Return a list for each part: the display position of each packet, in stored order. Raises
    UnjoinableError."""
    orders, parameters = [], set()
    for path in parts:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            packets = []
            for packet in container.demux(stream):
                watch()
                if packet.size and packet.pts is not None:
                    packets.append((packet.pts, packet.is_keyframe))
            parameters.add(bytes(stream.codec_context.extradata or b""))
        ranks = {pts: rank for rank, pts in enumerate(sorted(pts for pts, _ in packets))}
        if not packets or not packets[0][1] or len(ranks) < len(packets):
            raise UnjoinableError("a part of the video does not begin with its own key frame")
        orders.append([ranks[pts] for pts, _ in packets])
        if orders[-1][0]:
            raise UnjoinableError("a part of the video begins with an open GOP")
    if len(parameters) > 1:
        raise UnjoinableError("the parts of the video were encoded with different parameters")
    return orders


def _read_packets(
    parts: Sequence[Path], orders: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Any]]:
    """Yield (display position, packet) of all parts, in stored order."""
    before = 0
    for path, order in zip(parts, orders, strict=True):
        with av.open(str(path)) as container:
            packets = (
                packet
                for packet in container.demux(video=0)
                if packet.size and packet.pts is not None
            )
            for rank, packet in zip(order, packets, strict=True):
                yield before + rank, packet
        before += len(order)
