"""A track of the source's sound, cut to the written frames: copied, or re-encoded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av

from detector.core.sinks._about import copy_about
from detector.core.sinks.video.sound_rules import BROKEN, Moment, SoundRules
from detector.core.types import BACK_S

_NAMES = {"audio": "audio", "subtitle": "subtitle track", "data": "data track"}
USUAL_RATE = 48000  # samples/s, if the source's own rate is not possible
LONGEST_SLIP_S = Fraction(1, 50)  # tolerated offset of sound without stamps
SILENCE_S = 1  # of a block
NEVER = Fraction(-(10**9)), Fraction(0)


class CarriedTrack:
    """Takes the packets of one track of the source, and makes packets for ``output``.

    All times are exact fractions of a second on the source's clock. A broken track ends or has a
    gap, and ``notes`` say so. ``preroll`` also keeps the packet that spans ``start`` or ends on it,
    with a negative stamp, which MP4 hides with an edit list; without it the sound begins later.
    """

    def __init__(
        self,
        source: Any,
        packets: Iterator[Any],
        output: Any,
        start: Moment,
        *,
        rules: SoundRules,
        preroll: bool,
    ) -> None:
        """``packets``: of ``source``, in order; None if the next is not read yet. Raises ``BROKEN``
        if the track cannot be decoded or encoded; ``output`` then has no stream of it."""
        self.refused = 0  # packets refused by the decoder or the muxer
        self._ended = ""  # why the sound ends before the frames do
        self._held: Any = None  # packet or decoded frame that begins after the video frames so far
        self._last_pts: int | None = None
        self._rewinds = 0  # before ``_held``
        self._left_s = Fraction(0)  # when the last packet before such a rewind begins
        # By number of rewinds: the position of the frames, and how much earlier they are written.
        self._reached: dict[int, tuple[Fraction, Fraction]] = {}
        self._rules = rules
        self._filled_s = Fraction(0)  # end of the output so far, if gaps are filled
        self._source, self._packets = source, packets
        self.copied = source.type != "audio"
        if not self.copied:
            if source.codec_context is None:
                raise ValueError("there is no decoder for it")
            self.copied = source.codec_context.codec.canonical_name in rules.copied
        self._encodes = not self.copied
        self.stream = self._copy_stream(output) if self.copied else self._new_stream(output)
        copy_about(source, self.stream)
        self._reader = self._read_from(start, preroll)

    def _copy_stream(self, output: Any) -> Any:
        if self._source.type == "data":
            return output.add_data_stream(self._source.name)
        if self._source.type == "subtitle":  # some have no encoder, and need none
            return output.add_stream_from_template(self._source, opaque=True)
        return output.add_stream_from_template(self._source)

    def _new_stream(self, output: Any) -> Any:
        rate, channels = self._source.codec_context.sample_rate, count_channels(self._source)
        rules = self._rules
        stream = output.add_stream(rules.encoder, rate=rate if rate in rules.rates else USUAL_RATE)
        stream.codec_context.layout = "mono" if channels == 1 else "stereo"
        if rules.bits_per_s:
            stream.codec_context.bit_rate = rules.bits_per_s
        return stream

    def _read_from(self, start: Moment, preroll: bool) -> Iterator[Any]:
        last_s = None
        for item, duration_s in self._items():
            if item is None:
                yield None  # none yet
            elif item.pts is not None:
                begin_s = item.pts * item.time_base
                if last_s is not None and begin_s < last_s - BACK_S:
                    self._rewinds, self._left_s = self._rewinds + 1, last_s
                last_s = begin_s
                if (self._rewinds, begin_s + (duration_s if preroll else 0)) >= start:
                    yield item
            elif self._source.type == "data":
                self.refused += 1

    def _items(self) -> Iterator[tuple[Any, Fraction]]:
        """Yield packets to copy, or decoded frames to encode, each with its duration in seconds."""
        for packet in self._packets:
            if packet is None:
                yield None, Fraction(0)
                continue
            if self.copied:
                if packet.size:  # the last one is empty and flushes the decoder
                    yield packet, (packet.duration or 0) * packet.time_base
                continue
            try:
                frames = packet.decode()
            except av.InvalidDataError:  # an undecodable packet leaves a gap
                self.refused += 1
                continue
            for frame in frames:
                yield frame, Fraction(frame.samples, frame.sample_rate)

    def packets(self, until: Moment, shift_s: Fraction) -> Iterator[Any]:
        """Yield pending packets that begin before ``until``, moved ``shift_s`` earlier."""
        self._reached[until[0]] = until[1], shift_s
        while (item := self._peek()) is not None:
            begin_s = item.pts * item.time_base
            if (self._rewinds, begin_s) >= until:
                break
            self._held = None
            reached_s, earlier_s = self._reached.get(self._rewinds, NEVER)
            if begin_s < reached_s:  # no sound after a recording's last frame
                yield from self._move(item, earlier_s)

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
            return []  # inside a gap that a clock jump cut out
        self._last_pts = item.pts = item.pts - ticks
        if not self.copied:
            return [*self._silence_before(item), *self._encode(item)]
        item.dts = item.pts  # audio is never reordered; some containers omit dts
        item.stream = self.stream
        return [item]

    def _silence_before(self, frame: Any) -> list[Any]:
        """Return packets that fill the gap before a decoded frame, if the container needs that."""
        if not self._rules.gapless:
            return []
        begin_s, packets = frame.pts * frame.time_base, []
        while begin_s - self._filled_s > LONGEST_SLIP_S:
            samples = int(min(SILENCE_S, begin_s - self._filled_s) * frame.sample_rate)
            silence = av.AudioFrame(frame.format.name, frame.layout.name, samples)
            for plane in silence.planes:
                plane.update(bytes(plane.buffer_size))
            silence.sample_rate, silence.time_base = frame.sample_rate, frame.time_base
            silence.pts = round(self._filled_s / frame.time_base)
            packets += self._encode(silence)
            self._filled_s += Fraction(samples, frame.sample_rate)
        self._filled_s += Fraction(frame.samples, frame.sample_rate)
        return packets

    def _encode(self, frame: Any) -> list[Any]:
        """Return packets of a decoded frame; None flushes. A failed resampler is not used again."""
        try:
            return list(self.stream.encode(frame))
        except BROKEN as error:
            self._encodes = False
            self.end(f"it cannot be encoded as {self._rules.encoder} ({error})")
            return []

    def flush(self) -> list[Any]:
        return self._encode(None) if self._encodes else []

    def end(self, why: str) -> None:
        self._ended = self._ended or f"the {_NAMES[self._source.type]} ends early: {why}"
        self._held, self._reader = None, iter(())

    def notes(self) -> list[str]:
        what = f"{self._source.type} packets that could not be copied"
        refused = f"{what}: {self.refused}" if self.refused else ""
        latest = max(self._reached, default=0)
        reached_s, _ = self._reached.get(latest, NEVER)
        ahead = self._rewinds > latest and reached_s > self._left_s + BACK_S
        if ahead or (self._rewinds < latest and self._source.type == "audio"):
            self.end("its clock and that of the frames were not set back together")
        return [note for note in (self._ended, refused) if note]


def count_channels(source: Any) -> int:
    """Return the number of channels to decode. Raises ValueError for an unnamed channel order."""
    layout = source.codec_context.layout
    # PyAV 18.1 frees an unnamed list of channels once for every object that shares it, and the
    # process crashes. So we never free this object, and decode no frames, which have such objects.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(layout))
    # Named orders are "7.1" or "5.1(side)"; unnamed "8 channels (FL+FR+FC+LFE+SL+SR+BL+BR)".
    if " channels (" in layout.name:
        raise ValueError(
            f"{layout.name} cannot be mixed down; make a copy in stereo: ffmpeg -i IN -ac 2 COPY"
        )
    return int(layout.nb_channels)
