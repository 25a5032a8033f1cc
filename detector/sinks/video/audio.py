"""The source's sound, cut to the frames that are written: copied where MP4 can hold it, else
encoded as AAC.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

import av

# Codecs that players expect in MP4; they are copied. (The muxer would take others too, such as
# Vorbis.)
COPIED = ("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac")
AAC_BITS_PER_S = 160_000
BROKEN = (av.FFmpegError, OSError, ValueError, IndexError)  # what damaged or missing audio raises


class AudioTrack:
    """Reads the first audio stream of ``path``, beside the reader of the frames, and makes packets
    for ``output``.

    All times are exact fractions of a second on the source's clock. Memory is bounded: one packet
    is read ahead. Broken audio ends the track or leaves a gap, and ``notes`` say so; the video goes
    on.

    ``preroll`` also keeps the packet that spans ``start_s`` or ends on it. Its stamp becomes
    negative, which MP4 hides with an edit list. Without ``preroll`` the sound begins with the first
    packet after the first frame. Either way the sound stays in sync with the frames.
    """

    def __init__(self, path: str, output: Any, start_s: Fraction, *, preroll: bool) -> None:
        self.refused = 0  # packets that the decoder or the muxer did not take
        self._ended = ""  # why the sound ends before the frames do
        self._held: Any = None  # packet or decoded frame that begins after the video frames so far
        self._last_pts: int | None = None
        self._container = av.open(path)
        try:
            self._source = self._container.streams.audio[0]
            if self._source.codec_context is None:
                raise ValueError("nothing here can decode it")
            self.copied = self._source.codec_context.codec.canonical_name in COPIED
            self._encodes = not self.copied
            self.stream = self._copy_stream(output) if self.copied else self._aac_stream(output)
            self._seek_before(start_s)
        except BaseException:
            self._container.close()
            raise
        self._reader = self._read_from(start_s, preroll)

    def _copy_stream(self, output: Any) -> Any:
        return output.add_stream_from_template(self._source)

    def _aac_stream(self, output: Any) -> Any:
        rate, channels = self._source.codec_context.sample_rate, _count_channels(self._source)
        stream = output.add_stream("aac", rate=rate if 8000 <= rate <= 48000 else 48000)
        stream.codec_context.layout = "mono" if channels == 1 else "stereo"
        stream.codec_context.bit_rate = AAC_BITS_PER_S
        return stream

    def _seek_before(self, start_s: Fraction) -> None:
        """Skips what lies well before the first frame. A file without an index is read from its
        start.
        """
        if start_s - (self._source.start_time or 0) * self._source.time_base > 10:
            with suppress(*BROKEN):
                self._container.seek(
                    int((start_s - 5) / self._source.time_base), stream=self._source
                )

    def _read_from(self, start_s: Fraction, preroll: bool) -> Iterator[Any]:
        for item, duration_s in self._items():
            if item.pts is not None:
                begin_s = item.pts * item.time_base
                if begin_s >= start_s or (preroll and begin_s + duration_s >= start_s):
                    yield item

    def _items(self) -> Iterator[tuple[Any, Fraction]]:
        """Packets to copy, or decoded frames to encode, each with its duration in seconds."""
        for packet in self._container.demux(self._source):
            if self.copied:
                if packet.size:  # the last one is empty: flush the decoder
                    yield packet, (packet.duration or 0) * packet.time_base
                continue
            try:
                frames = packet.decode()
            except av.InvalidDataError:  # a packet that does not decode is a gap in the sound
                self.refused += 1
                continue
            for frame in frames:
                yield frame, Fraction(frame.samples, frame.sample_rate)

    def packets(self, until_s: Fraction, shift_s: Fraction) -> Iterator[Any]:
        """Packets for the muxer: all that begin before ``until_s`` and were not handed out yet.

        They are moved ``shift_s`` earlier.
        """
        while (item := self._peek()) is not None and item.pts * item.time_base < until_s:
            self._held = None
            yield from self._move(item, shift_s)

    def _peek(self) -> Any:
        if self._held is None:
            try:
                self._held = next(self._reader, None)
            except BROKEN as error:
                self.end(f"it is damaged ({error})")
        return self._held

    def _move(self, item: Any, shift_s: Fraction) -> list[Any]:
        ticks = round(shift_s / item.time_base)
        if self._last_pts is not None and item.pts - ticks <= self._last_pts:
            return []  # it lies in a stretch that a jump of the clock cut out
        self._last_pts = item.pts = item.pts - ticks
        if not self.copied:
            return self._encode(item)
        item.dts = item.pts  # audio is never reordered; some containers leave dts out
        item.stream = self.stream
        return [item]

    def _encode(self, frame: Any) -> list[Any]:
        """AAC packets of a decoded frame; None flushes the encoder.

        Once PyAV's resampler has failed (on a layout that it cannot mix down) it must not be used
        again.
        """
        try:
            return list(self.stream.encode(frame))
        except BROKEN as error:
            self._encodes = False
            self.end(f"it cannot be encoded as AAC ({error})")
            return []

    def flush(self) -> list[Any]:
        """The last packets of the AAC encoder."""
        return self._encode(None) if self._encodes else []

    def end(self, why: str) -> None:
        """Ends the sound here and notes why."""
        self._ended = self._ended or f"the audio ends early: {why}"
        self._held, self._reader = None, iter(())

    def notes(self) -> list[str]:
        """What is missing of the sound; empty where it is whole."""
        refused = f"audio packets that could not be copied: {self.refused}" if self.refused else ""
        return [note for note in (self._ended, refused) if note]

    def close(self) -> None:
        self._container.close()


def _count_channels(source: Any) -> int:
    """How many channels are to be decoded. Raises ValueError for an order of channels without a
    name.
    """
    layout = source.codec_context.layout
    # PyAV 18.1 frees an unnamed list of channels once for every object that shares it, and the
    # process crashes. So this object is never freed, and frames, which have such objects too, are
    # not decoded.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(layout))
    # Named orders are "7.1" or "5.1(side)"; unnamed "8 channels (FL+FR+FC+LFE+SL+SR+BL+BR)", some
    # 7.1.
    if " channels (" in layout.name:
        raise ValueError(
            f"{layout.name} cannot be mixed down here; "
            "make a copy in stereo: ffmpeg -i IN -ac 2 COPY"
        )
    return int(layout.nb_channels)
