"""Plays a file repeatedly at its own pace, like a camera (--loop)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av

from detector.core.errors import SourceError
from detector.core.errors.holding import bad_tags, how_to_open
from detector.core.sources._forms import is_web
from detector.core.sources._network.meanings import NO_VIDEO, UNDECODED, ErrorMeaning, explain
from detector.core.sources.video._container import probe
from detector.core.sources.video._tracks import choose_track
from detector.live.sources.decoding import prepare
from detector.live.sources.hardware import make_accelerator
from detector.live.sources.packet_feed import PacketFeed
from detector.live.sources.packets import End
from detector.live.sources.status import SECOND

MOST_BEHIND_S = 5.0  # if playback is further behind, the machine slept: do not catch up


class LoopedFeed(PacketFeed):
    """Delivers packets at the file's pace, like an endless connection with continuous pts."""

    def receive_all(self) -> None:
        while not self.stopping.is_set():
            epoch = self.status.connect(self.clock())
            self.wake()
            meaning = self._play(epoch)
            if self.stopping.is_set():
                return
            next_try_ns = self.status.fail(self.clock(), f"{self.camera.address}: {meaning.text}")
            self.wake()
            self.stopping.wait((next_try_ns - self.clock()) / SECOND)

    def _play(self, epoch: int) -> ErrorMeaning:
        pace = _LoopPace()
        try:
            while True:
                with self._opened() as container:
                    if not container.streams.video:
                        return NO_VIDEO
                    video, _ = choose_track(self.camera.address.whole, container, None)
                    if video.codec_context is None:
                        return UNDECODED
                    if not self._play_once(container, video, epoch, pace):
                        return ErrorMeaning("it contains no frame")
        except SourceError as error:  # from a web server
            return ErrorMeaning(str(error))
        except (av.error.FFmpegError, OSError, ValueError) as error:
            return explain(error)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        arguments = {"hwaccel": make_accelerator(self.camera.options), **bad_tags()}
        with (
            _hold_web_file(self.camera.address.whole) as name,
            av.open(**how_to_open(name), **arguments) as container,
        ):
            yield container

    def _play_once(self, container: Any, video: Any, epoch: int, pace: _LoopPace) -> bool:
        """Play the file once; return False if it was stopped, or had no packets."""
        codec = video.codec_context
        prepare(codec)
        streams = [video, *container.streams.audio] if self.listeners else [video]
        self.begin(streams, held_back=False)
        played = False
        try:
            for packet in container.demux(streams):
                if not packet.size:
                    continue
                if not self._wait_until(pace.shift(packet), pace):
                    return False
                self.receive(packet, codec, epoch, video.index)
                played = True
        finally:
            pace.end_pass()
            for listener in self.listeners:
                listener.closed()
            self.packets.finish(End(epoch, codec))
        return played

    def _wait_until(self, due_s: float, pace: _LoopPace) -> bool:
        now_ns = self.clock()
        if pace.began_ns is None:
            pace.began_ns = now_ns - round(due_s * SECOND)
        wait_s = (pace.began_ns - now_ns) / SECOND + due_s
        if wait_s < -MOST_BEHIND_S:
            pace.began_ns -= round(wait_s * SECOND)
        return not self.stopping.wait(wait_s) if wait_s > 0 else not self.stopping.is_set()


class _LoopPace:
    def __init__(self) -> None:
        self.began_ns: int | None = None  # the feed's clock at second 0 of the first pass
        self._shift_s = 0.0  # duration of the earlier passes
        self._start_s, self._end_s = float("inf"), 0.0  # first and last stamp of this pass
        self._due_s = 0.0

    def shift(self, packet: Any) -> float:
        """Add the length of earlier passes to a packet's stamps. Return its due time in seconds."""
        base = packet.time_base
        stamps = [stamp for stamp in (packet.dts, packet.pts) if stamp is not None]
        if not stamps:
            return self._due_s
        shown = stamps[-1]
        self._start_s = min(self._start_s, float(shown * base))
        self._end_s = max(self._end_s, float((shown + (packet.duration or 0)) * base))
        self._due_s = float(stamps[0] * base) + self._shift_s
        shift = round(Fraction(self._shift_s) / base)
        if packet.pts is not None:
            packet.pts += shift
        if packet.dts is not None:
            packet.dts += shift
        return self._due_s

    def end_pass(self) -> None:
        """End a pass. The next pass begins when the last picture of this pass ends."""
        self._shift_s += max(0.0, self._end_s - self._start_s)
        self._start_s, self._end_s = float("inf"), 0.0


@contextlib.contextmanager
def _hold_web_file(path: str) -> Iterator[str]:
    """Yield a name for ``how_to_open``, also for a file on a web server. Raises SourceError."""
    if not is_web(path):
        yield path
        return
    from detector.core.sources._ranges import holding
    from detector.core.sources._web import WebPlace, open_web

    stored = open_web(WebPlace(path))
    with holding(stored) as name:
        yield name
        stored.raise_error()


def check_file(path: str) -> None:
    """Raise SourceError if the file has no decodable video."""
    with _hold_web_file(path) as name:
        if not probe(name).decodable:
            raise SourceError(f"{name}: {UNDECODED.text}")
