"""Copy or re-encode one track of the source, cut to the written frames."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av

from detector.core.sinks._about import copy_description
from detector.core.sinks.video.sound_rules import BROKEN, Moment, SoundRules
from detector.core.types import BACK_S

_NAMES = {"audio": "audio", "subtitle": "subtitle track", "data": "data track"}
DEFAULT_RATE = 48000  # samples/s, used if the encoder does not support the source's rate
LONGEST_SLIP_S = Fraction(1, 50)  # silence fills longer gaps if the output's sound has no stamps
SILENCE_S = 1  # longest block of silence
NEVER = Fraction(-(10**9)), Fraction(0)


class CarriedTrack:
    """Turns the packets of one track of the source into packets for ``output``.

    All times are exact fractions of a second on the source's clock. A damaged track ends early or
    has a gap, and ``notes`` say so. With ``preroll``, a packet that spans ``start`` or ends there
    is kept, too. Its stamp is negative, and MP4 hides it with an edit list.
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
        """``packets`` yields the packets of ``source``, or None if the next is not read yet. Raises
        ``BROKEN`` if the track cannot be decoded or encoded; ``output`` then gets no stream."""
        self.refused = 0  # packets refused by the decoder or the muxer
        self._ended = ""  # why the track ends before the frames do
        self._held: Any = None  # next packet or decoded frame, which begins after the video so far
        self._last_pts: int | None = None
        self._rewinds = 0  # how often the clock was set back before ``_held``
        self._left_s = Fraction(0)  # time of the last packet before the clock was set back
        # How often the clock was set back before a part of the source -> (clock time at which the
        # written frames of the part end, seconds by which its packets are moved to earlier times).
        self._positions: dict[int, tuple[Fraction, Fraction]] = {}
        self._rules = rules
        self._filled_s = Fraction(0)  # end of the output so far, if gaps are filled
        self._source, self._packets = source, packets
        self.copied = source.type != "audio"
        if not self.copied:
            if source.codec_context is None:
                raise ValueError("there is no decoder for it")
            self.copied = source.codec_context.codec.canonical_name in rules.copied
        self._encodes = not self.copied
        self.stream = (
            self._add_copied_stream(output) if self.copied else self._add_encoded_stream(output)
        )
        copy_description(source, self.stream)
        self._reader = self._read_from(start, preroll)

    def _add_copied_stream(self, output: Any) -> Any:
        if self._source.type == "data":
            return output.add_data_stream(self._source.name)
        if self._source.type == "subtitle":  # "opaque": without an encoder
            return output.add_stream_from_template(self._source, opaque=True)
        return output.add_stream_from_template(self._source)

    def _add_encoded_stream(self, output: Any) -> Any:
        rate, channels = self._source.codec_context.sample_rate, count_channels(self._source)
        rules = self._rules
        stream = output.add_stream(
            rules.encoder, rate=rate if rate in rules.rates else DEFAULT_RATE
        )
        stream.codec_context.layout = "mono" if channels == 1 else "stereo"
        if rules.bits_per_s:
            stream.codec_context.bit_rate = rules.bits_per_s
        return stream

    def _read_from(self, start: Moment, preroll: bool) -> Iterator[Any]:
        last_s = None
        for item, duration_s in self._read_items():
            if item is None:
                yield None
            elif item.pts is not None:
                begin_s = item.pts * item.time_base
                if last_s is not None and begin_s < last_s - BACK_S:
                    self._rewinds, self._left_s = self._rewinds + 1, last_s
                last_s = begin_s
                if (self._rewinds, begin_s + (duration_s if preroll else 0)) >= start:
                    yield item
            elif self._source.type == "data":
                self.refused += 1

    def _read_items(self) -> Iterator[tuple[Any, Fraction]]:
        """Yield packets to copy or decoded frames to encode, with their durations in seconds."""
        for packet in self._packets:
            if packet is None:
                yield None, Fraction(0)
                continue
            if self.copied:
                if packet.size:  # the packet at the end is empty
                    yield packet, (packet.duration or 0) * packet.time_base
                continue
            try:
                frames = packet.decode()
            except av.InvalidDataError:
                self.refused += 1
                continue
            for frame in frames:
                yield frame, Fraction(frame.samples, frame.sample_rate)

    def packets(self, until: Moment, shift_s: Fraction) -> Iterator[Any]:
        """Yield the packets that begin before ``until``, moved ``shift_s`` earlier."""
        self._positions[until[0]] = until[1], shift_s
        while (item := self._peek()) is not None:
            begin_s = item.pts * item.time_base
            if (self._rewinds, begin_s) >= until:
                break
            self._held = None
            end_s, earlier_s = self._positions.get(self._rewinds, NEVER)
            if begin_s < end_s:  # otherwise drop it: it is after the last frame before a rewind
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
            return []  # inside a gap that was removed after a jump of the clock
        self._last_pts = item.pts = item.pts - ticks
        if not self.copied:
            return [*self._silence_before(item), *self._encode(item)]
        item.dts = item.pts  # some containers omit dts, and sound is never reordered
        item.stream = self.stream
        return [item]

    def _silence_before(self, frame: Any) -> list[Any]:
        """Return packets of silence for the gap before a frame, if the container needs them."""
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
        """Return packets for a decoded frame; None flushes the encoder. After an error the track
        ends, because the resampler cannot be used again."""
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
        latest = max(self._positions, default=0)
        end_s, _ = self._positions.get(latest, NEVER)
        ahead = self._rewinds > latest and end_s > self._left_s + BACK_S
        if ahead or (self._rewinds < latest and self._source.type == "audio"):
            self.end("its clock and the frames' clock were not set back at the same time")
        return [note for note in (self._ended, refused) if note]


def count_channels(source: Any) -> int:
    """Return the number of channels to decode. Raises ValueError for an unnamed channel order."""
    layout = source.codec_context.layout
    # PyAV 18.1 frees an unnamed channel order once per object that shares it, which crashes the
    # process. So we never free this object, and decode no frames, which would share the order.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(layout))
    # A named order is "7.1" or "5.1(side)"; an unnamed one "8 channels (FL+FR+FC+LFE+SL+SR+BL+BR)".
    if " channels (" in layout.name:
        raise ValueError(
            f"{layout.name} cannot be mixed down; make a copy in stereo: ffmpeg -i IN -ac 2 COPY"
        )
    return int(layout.nb_channels)
