"""Read a video from a pipe, frames and sound at once, without seeking."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from detector.core.errors.text import counted
from detector.core.sources._forms import STANDARD_INPUT
from detector.core.sources._standard_input import standard_input
from detector.core.sources.base import Choice
from detector.core.sources.video._container import demux, probe, require_frame
from detector.core.sources.video._tracks import list_data_tracks
from detector.core.sources.video.av import AvSource
from detector.core.types import Frame, Image

MOST_BUFFERED = 64 << 20  # bytes of waiting packets: five minutes of CD sound, an hour of AAC
SOUND_LAG_S = 2  # sound may be stored this much later than its pictures


class TrackBuffer:
    """Keeps packets of a sound, subtitle or data track until the writer's thread takes them."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.ended = False
        self.requested = False
        self.lost = 0  # packets that did not fit
        self.newest_s = Fraction(-1)
        self._packets: deque[Any] = deque()
        self._bytes = 0
        self._delivering = False

    def begin(self) -> None:
        """Begin to deliver. If the track was not requested, discard all its packets."""
        self._delivering = True
        if not self.requested:
            self._packets.clear()

    def put(self, packet: Any) -> None:
        if packet.pts is not None:
            self.newest_s = packet.pts * packet.time_base
        if self.requested or not self._delivering:
            self._packets.append(packet)
            self._bytes += packet.size
        while self._bytes > MOST_BUFFERED and self._packets:
            self._bytes -= self._packets.popleft().size
            self.lost += self._delivering  # packets before delivery precede --start: not needed

    def take(self) -> Any:
        """Return the next packet; None if it has not arrived yet, or at the end."""
        try:
            packet = self._packets.popleft()
        except IndexError:
            return None
        self._bytes -= packet.size
        return packet


def open_pipe(stride: int, frames: int | None, pixels: str, choice: Choice) -> PipedSource:
    """Open standard input. Raises SourceError if no frame can be decoded."""
    source = PipedSource(stride, frames, pixels, choice)
    return require_frame(source, source.video, standard_input().raise_error)


class PipedSource(AvSource):
    def __init__(self, stride: int, frames: int | None, pixels: str, choice: Choice) -> None:
        super().__init__(probe(STANDARD_INPUT, choice), stride, frames, pixels=pixels)
        streams = self._container.streams
        others = (*streams.audio, *streams.subtitles, *list_data_tracks(self._container))
        self._tracks = tuple(map(TrackBuffer, others))
        self.info.tracks = self._tracks
        self._demuxing = self._demux_all()
        self._sound_read = False
        self.notes.append(
            "standard input was read as a stream: packets and frames were checked, but not the "
            "size and index of its container"
        )

    def demux(self) -> Iterator[Any]:
        return self._demuxing

    def _demux_all(self) -> Iterator[Any]:
        """Yield the video's packets; put those of other tracks into their buffers."""
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

    def finish_at_limit(self) -> None:
        """Read the rest of the sound, which a file may store later than its pictures."""
        super().finish_at_limit()
        tracks = [track for track in self._tracks if track.requested]
        sounds = [track for track in tracks if track.stream.type == "audio"]
        if self._sound_read or not sounds:
            return
        self._sound_read = True
        end_s = (self._clock.stated + self.video.ticks) * self.info.time_base
        for packet in self._demuxing:
            is_past = packet.pts is not None and (
                packet.pts * self.info.time_base > end_s + SOUND_LAG_S
            )
            if is_past or all(track.newest_s >= end_s for track in sounds):
                break

    def note_damage(self, what: str) -> None:
        if not standard_input().stopped():  # a stopped run ends early; that is not damage
            super().note_damage(what)

    def close(self) -> None:
        if (lost := sum(track.lost for track in self._tracks)) and not self._closed:
            self.notes.append(
                f"{counted(lost, 'packet')} of sound lost: stored too far from their pictures"
            )
        super().close()
