"""Copy the sound, subtitle and data tracks of a source to an output video."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

import av
from av.stream import Disposition

from detector.core.errors.holding import bad_tags, how_to_open
from detector.core.errors.text import counted
from detector.core.sinks._about import (
    copy_fonts,
    describe_data,
    is_data,
    is_overlay_track,
    read_title,
)
from detector.core.sinks.video.audio import CarriedTrack
from detector.core.sinks.video.sound_rules import BROKEN, Moment, SoundRules
from detector.core.types import BACK_S, PipedTrack, SourceInfo

SEEK_IF_LATER_S = 10  # seek to the first frame only if it is later than this
SEEK_MARGIN_S = 5  # reading starts this long before the first frame
STYLED = ("ass", "ssa")  # subtitle formats that use attached fonts
LAG_S = 2  # sound may be stored this much later than its pictures


class CarriedTracks:
    """The copied tracks of an output. ``notes`` name the omitted tracks."""

    def __init__(
        self,
        info: SourceInfo,
        output: Any,
        start: Moment,
        *,
        rules: SoundRules,
        preroll: bool,
        suffix: str,
        most: int | None = None,
    ) -> None:
        """Add at most ``most`` tracks. Raises ``BROKEN`` if the source cannot be reopened."""
        self.notes: list[str] = []
        self.carried: list[CarriedTrack] = []
        self._container: Any = None
        self._reader: _SharedReader | None = None
        try:
            if info.tracks:
                feeds = {track.stream.index: _take_all(track) for track in info.tracks}
                streams = [track.stream for track in info.tracks]
            else:
                self._container = av.open(**how_to_open(info.path), **bad_tags())
                kinds = self._container.streams
                streams = [*kinds.audio, *kinds.subtitles, *filter(is_data, kinds.data)]
            chosen = self._choose(streams, rules, suffix)
            if most is not None and len(chosen) > most:
                kept = describe(chosen[0])
                self.notes.append(f"only {kept} was copied: {suffix} refused all tracks together")
                chosen = chosen[:most]
            if not info.tracks:
                feeds = self._read(info, chosen, start)
            self._carry(chosen, feeds, output, start, rules, preroll)
        except BaseException:
            self.close()
            raise

    def _choose(self, streams: Sequence[Any], rules: SoundRules, suffix: str) -> list[Any]:
        """Return the streams that the format supports, sound first."""
        sound = [stream for stream in streams if stream.type == "audio"]
        if rules.most is not None and len(sound) > rules.most:
            default = Disposition.default
            kept = sorted(sound, key=lambda track: not track.disposition & default)[: rules.most]
            omitted = ", ".join(describe(stream) for stream in sound if stream not in kept)
            self.notes.append(
                f"{suffix} holds at most {counted(rules.most, 'sound track')}; omitted: {omitted}; "
                "write a .mp4 or .mkv to keep all"
            )
            sound = kept
        subtitles = []
        for stream in streams:
            if stream.type != "subtitle" or is_overlay_track(stream):
                continue
            if _name_codec(stream) in rules.subtitles:
                subtitles.append(stream)
                continue
            self.notes.append(
                f"{describe(stream)} was omitted: {suffix} cannot hold {_name_codec(stream)}"
            )
        data = [stream for stream in streams if stream.type == "data"]
        copied = [track for track in data if track.name in rules.data and _is_supported_data(track)]
        if names := ", ".join(describe_data(track) for track in data if track not in copied):
            self.notes.append(f"data tracks ({names}) were omitted: {suffix} cannot hold them")
        return [*sound, *subtitles, *copied]

    def _read(
        self, info: SourceInfo, chosen: Sequence[Any], start: Moment
    ) -> dict[int, Iterator[Any]]:
        if len(chosen) == 1 and chosen[0].type == "audio":
            self._seek_before(chosen[0], start)
            return {chosen[0].index: self._container.demux(chosen[0])}
        if not chosen:
            return {}
        streams = self._container.streams
        video = streams.video[0] if info.stream is None else streams[info.stream]
        self._seek_before(video, start)
        self._reader = _SharedReader(self._container, video, chosen)
        return {track.stream.index: _take_all(track) for track in self._reader.tracks}

    def _seek_before(self, stream: Any, start: Moment) -> None:
        """Seek to shortly before the first frame. If that fails, stay at the file's start."""
        rewinds, start_s = start
        if not rewinds and start_s - (stream.start_time or 0) * stream.time_base > SEEK_IF_LATER_S:
            with suppress(*BROKEN):
                self._container.seek(
                    int((start_s - SEEK_MARGIN_S) / stream.time_base), stream=stream
                )

    def _carry(
        self,
        chosen: Sequence[Any],
        feeds: dict[int, Iterator[Any]],
        output: Any,
        start: Moment,
        rules: SoundRules,
        preroll: bool,
    ) -> None:
        failed: list[tuple[Any, Exception]] = []
        for stream in chosen:
            try:
                track = CarriedTrack(
                    stream, feeds[stream.index], output, start, rules=rules, preroll=preroll
                )
            except BROKEN as error:
                failed.append((stream, error))
            else:
                self.carried.append(track)
        if failed and not self.carried:
            raise failed[0][1]
        self.notes += [f"{describe(stream)} could not be copied: {why}" for stream, why in failed]
        if self._container is not None and any(_name_codec(stream) in STYLED for stream in chosen):
            copy_fonts(self._container, output)

    def mux(self, output: Any, until: Moment, shift_s: Fraction, refused: Any) -> None:
        """Mux the packets that begin before ``until``, and shift them to start ``shift_s`` earlier.
        Skip a packet if the muxer raises ``refused``."""
        if self._reader is not None:
            self._reader.read_to(until)
        for track in self.carried:
            while True:
                try:
                    for packet in track.packets(until, shift_s):
                        output.mux(packet)
                    break
                except refused:
                    track.refused += 1

    def finish(self, output: Any) -> list[str]:
        for track in self.carried:
            output.mux(track.flush())
        return [note for track in self.carried for note in track.notes()]

    def close(self) -> None:
        if self._container is not None:
            self._container.close()


class _SharedReader:
    """Reads several tracks of a file at once, and queues their packets until they are due."""

    def __init__(self, container: Any, video: Any, streams: Sequence[Any]) -> None:
        self.tracks = [_TrackQueue(stream) for stream in streams]
        self._video = video
        self._packets = container.demux(video, *streams)
        self._read: Moment = 0, Fraction(-(10**9))  # position in the video

    def read_to(self, until: Moment) -> None:
        """Read until all packets before ``until`` are in the queues."""
        by_index = {track.stream.index: track for track in self.tracks}
        while self._read < (until[0], until[1] + LAG_S):
            try:
                packet = next(self._packets, None)
            except BROKEN:
                packet = None  # the reader of the frames reports the error
            if packet is None:
                for track in self.tracks:
                    track.ended = True
                return
            if packet.stream_index == self._video.index:
                if packet.dts is not None:
                    rewinds, read_s = self._read
                    at_s = packet.dts * packet.time_base
                    rewinds += at_s < read_s - BACK_S
                    self._read = max(self._read, (rewinds, at_s))
            else:
                by_index[packet.stream_index].waiting.append(packet)


class _TrackQueue:
    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.ended, self.requested = False, True
        self.waiting: deque[Any] = deque()

    def take(self) -> Any:
        return self.waiting.popleft() if self.waiting else None


def _take_all(track: PipedTrack) -> Iterator[Any]:
    """Yield a track's packets, or None while the next one has not been read yet."""
    while (packet := track.take()) is not None or not track.ended:
        yield packet
    while (packet := track.take()) is not None:  # packets added just before the end
        yield packet


def _is_supported_data(data: Any) -> bool:
    """Return False for unknown data except GoPro's: in MP4, FFmpeg labels all of it as GoPro's."""
    return data.name != "bin_data" or "GoPro" in data.metadata.get("handler_name", "")


def describe(stream: Any) -> str:
    """Describe a track for messages: its kind, codec, language and title."""
    what = f"a {stream.type.replace('audio', 'sound')} track"
    words = [_name_codec(stream), stream.metadata.get("language", ""), read_title(stream)]
    return f"{what} ({', '.join(filter(None, words))})"


def _name_codec(stream: Any) -> str:
    context = stream.codec_context
    return "an unknown codec" if context is None else str(context.codec.canonical_name)
