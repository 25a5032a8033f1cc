"""A video from a pipe: one opening for its frames and its sound, without seeking."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from detector.core.errors.text import counted
from detector.core.sources._forms import STANDARD_INPUT
from detector.core.sources._standard_input import standard_input
from detector.core.sources.base import ANY, Choice
from detector.core.sources.video._container import demux, no_frame, probe
from detector.core.sources.video._tracks import data_tracks
from detector.core.sources.video.av import AvSource
from detector.core.types import Frame, Image

MOST_SOUND = 64 << 20  # bytes of waiting packets: five minutes of CD sound, an hour of AAC
# Sound may be stored this long after its pictures, so we read on after the last frame.
SOUND_LAG_S = 2


class TrackBuffer:
    """The packets of a sound or subtitle track, from the reader's to the writer's thread."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.ended = False
        self.wanted = False
        self.lost = 0  # packets that did not fit
        self.newest_s = Fraction(-1)
        self._packets: deque[Any] = deque()
        self._bytes = 0
        self._begun = False

    def want(self) -> None:
        """Announce that the packets will be taken. Call it before the second frame is read."""
        self.wanted = True

    def begin(self) -> None:
        """Start delivering frames: a track that was not requested until now gets no packets."""
        self._begun = True
        if not self.wanted:
            self._packets.clear()

    def put(self, packet: Any) -> None:
        if packet.pts is not None:
            self.newest_s = packet.pts * packet.time_base
        if self.wanted or not self._begun:  # an empty one at the end flushes the decoder
            self._packets.append(packet)
            self._bytes += packet.size
        while self._bytes > MOST_SOUND and self._packets:
            self._bytes -= self._packets.popleft().size
            self.lost += self._begun  # before that, it was sound before --start

    def take(self) -> Any:
        """Return the next packet; None if none has arrived yet, and after the last."""
        try:
            packet = self._packets.popleft()
        except IndexError:
            return None
        self._bytes -= packet.size
        return packet


class PipedSource(AvSource):
    """PyAV's frames of standard input."""

    def __init__(
        self, stride: int = 1, frames: int | None = None, pixels: str = "bgr", choice: Choice = ANY
    ) -> None:
        super().__init__(probe(STANDARD_INPUT, choice), stride, frames, pixels=pixels)
        streams = self._container.streams
        others = (*streams.audio, *streams.subtitles, *data_tracks(self._container))
        self._tracks = tuple(map(TrackBuffer, others))
        self.info.tracks = self._tracks
        self._demuxing = self._demux_all()
        self._read_on = False
        self.notes.append(
            "standard input was read as a stream: packets and frames were checked, but not the "
            "size and index of its container"
        )

    @classmethod
    def open_first(
        cls, stride: int, frames: int | None, pixels: str, choice: Choice = ANY
    ) -> PipedSource:
        """Open standard input. Raises SourceError if no frame can be decoded."""
        source = cls(stride, frames, pixels, choice)
        if source.hold_first():
            return source
        source.close()
        standard_input().raise_error()
        raise no_frame(source.video, source.counts.bad)

    def demux(self) -> Iterator[Any]:
        return self._demuxing

    def _demux_all(self) -> Iterator[Any]:
        """Yield the video's packets; pass those of other tracks to their consumers."""
        others = {track.stream.index: track for track in self._tracks}
        streams = (self._stream, *(track.stream for track in self._tracks))
        for packet in demux(self._container, *streams):
            if (track := others.get(packet.stream_index)) is None:
                yield packet
            else:
                track.put(packet)
        for track in self._tracks:
            track.ended = True

    def seek(self, start_s: Fraction) -> int | None:
        return None

    def restrict(self, start_s: Fraction | None, duration_s: Fraction | None) -> None:
        standard_input().forget()
        super().restrict(start_s, duration_s)

    def read(self, into: Image | None = None) -> Frame | None:
        standard_input().forget()
        if not self._handed_out:
            for track in self._tracks:
                track.begin()
        frame = super().read(into)
        if frame is None:
            standard_input().raise_error()
        return frame

    def at_limit(self) -> None:
        """Read on for the sound of the last frames, which may be stored after them."""
        super().at_limit()
        heard = [one for one in self._tracks if one.wanted and one.stream.type == "audio"]
        if self._read_on or not heard:
            return
        self._read_on = True
        end_s = (self._clock.stated + self.video.ticks) * self.info.time_base
        for packet in self._demuxing:
            behind = packet.pts is not None and (
                packet.pts * self.info.time_base > end_s + SOUND_LAG_S
            )
            if behind or all(track.newest_s >= end_s for track in heard):
                break

    def note_damage(self, what: str) -> None:
        if not standard_input().stopped():  # a stopped run ends wherever it is
            super().note_damage(what)

    def close(self) -> None:
        if (lost := sum(track.lost for track in self._tracks)) and not self._closed:
            self.notes.append(
                f"{counted(lost, 'packet')} of the sound were lost: they are stored too far from "
                "the pictures"
            )
        super().close()
