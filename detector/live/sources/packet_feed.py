"""A feed of packets: one thread receives, another decodes.

The receiving thread stamps packets and never waits for the decoder. The decoding thread also
interrupts the receiving thread if nothing arrives.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from detector.core.timeline.spans import READ, WAIT_INPUT, WAIT_OUTPUT, OffTrack, ThreadTrack
from detector.core.types import Image
from detector.live.sources.base import STOPPED, UNDECODED, FeedFacts, Picture
from detector.live.sources.decoding import Converter, PacketDecoder
from detector.live.sources.ffmpeg_log import DamageLog, LogWatch
from detector.live.sources.hardware import describe_codec
from detector.live.sources.interrupt import Interrupt
from detector.live.sources.packets import End, PacketQueue, Received, Stamp
from detector.live.sources.shedding import Shedding
from detector.live.sources.threaded import TICK_S, ThreadedFeed

Track = ThreadTrack | OffTrack
PRFT = struct.Struct("<qi4x")  # AVProducerReferenceTime: Unix microseconds, flags
# Demuxers that detect the end of a picture only at the start of the next one.
HOLD_BACK = ("rtsp", "rtp", "sdp", "mpegts", "h264", "hevc")
SUSPENDED_NS = 1_000_000_000  # if checks are further apart than this, the machine was suspended


def is_held_back(demuxer: str, codec: str) -> bool:
    """Return whether FFmpeg returns a picture only when the next one begins."""
    return demuxer in HOLD_BACK and codec != "mjpeg"


class PacketFeed(ThreadedFeed):
    may_shed = False  # may skip decoding if the machine is overloaded
    was_cut = False  # the decoding thread interrupted a read that got no data
    is_shown = False  # a picture of this connection was decoded

    def receive_all(self) -> None:
        """Receive until ``stopping``, in the receiving thread."""
        raise NotImplementedError

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.receiving = Interrupt()
        self.packets = PacketQueue(self.terms.max_age_s, not self.terms.every, self.status.drop)
        self._decoder = PacketDecoder(self.camera.name, self.status.drop, self.clock)
        self._converter = Converter(self.terms.grey)
        # With a ``rate``, pictures must be evenly spaced, so none is skipped.
        sheds = self.may_shed and not self.terms.every and self.camera.rate is None
        self._needed: Callable[[], bool] = (lambda: False) if sheds else (lambda: True)
        self._shedding = Shedding(
            lambda: self.status.taken, self.terms.cpu_load.measure, lambda: self._needed()
        )
        self._cpu_ns = 0  # CPU time of the decoding thread, as last reported
        self._decoded_epoch = 0  # epoch of the last decoded packet
        self._watched_ns = self.clock()

    def jobs(self) -> dict[str, Callable[[], None]]:
        return {"receive": self._receive, "decode": self._decode}

    def interrupt(self) -> None:
        self.receiving.stop()
        self.packets.wake()

    def end(self) -> None:
        self.status.drop(STOPPED, self.packets.close())
        self._decoder.abandon(STOPPED)

    def convert(self, picture: Picture, into: Image | None) -> Image:
        return self._converter.convert(picture.content, into)

    def facts(self) -> FeedFacts:
        facts, grey = super().facts(), self._converter.grey
        notes = (facts.note, "" if grey is None else grey.note)
        return replace(facts, note="; ".join(filter(None, notes)))

    def decode_all_while(self, needed: Callable[[], bool]) -> None:
        before = self._needed
        self._needed = lambda: before() or needed()

    # These methods run in the receiving thread.

    def _receive(self) -> None:
        with self.receiving, LogWatch(self.handle_message) as self.watch:
            self.receive_all()

    def handle_message(self, message: str) -> None:
        """Handle a log message of FFmpeg. FFmpeg waits until this method returns."""

    def begin(self, streams: list[Any], held_back: bool) -> None:
        self.packets.begin()
        self._shedding.begin()
        self._is_held_back = held_back
        self._previous = self.clock(), self.utc()
        for listener in self.listeners:
            listener.opened(streams, *self._previous)

    def receive(self, packet: Any, codec: Any, epoch: int, video: int) -> None:
        """Pass a new packet to the listeners; stamp and queue it if it is of stream ``video``."""
        is_video = packet.stream_index == video
        arrived_ns, utc_s = now = self.clock(), self.utc()
        if is_video:
            if self._is_held_back:  # this picture began when FFmpeg returned the previous packet
                arrived_ns, utc_s = self._previous
            self._previous = now
        for listener in self.listeners:
            listener.packet(packet, arrived_ns, utc_s)
        if not is_video:
            return
        captured_s = None
        if packet.has_sidedata("prft"):
            captured_s = PRFT.unpack(bytes(packet.get_sidedata("prft"))[: PRFT.size])[0] / 1e6
        stamp = Stamp(self.status.arrive(now[0]), epoch, arrived_ns, utc_s, captured_s)
        self._shedding.arrive(arrived_ns, packet.is_keyframe)
        self.packets.put(Received(packet, stamp, codec, packet.is_keyframe, packet.size))

    # These methods run in the decoding thread.

    def _decode(self) -> None:
        with DamageLog() as damage_log, self.timeline.track(f"camera {self.camera.name}") as track:
            number = 0
            self._cpu_ns = time.thread_time_ns()
            while not self.stopping.is_set():
                self._watch()
                damage_log.restore_level()
                with track.span(READ, number, WAIT_INPUT):
                    item = self.packets.get(TICK_S)
                if isinstance(item, Received):
                    number, self._decoded_epoch = item.stamp.number, item.stamp.epoch
                    self._decode_or_skip(item, damage_log, track)
                    before, self._cpu_ns = self._cpu_ns, time.thread_time_ns()
                    self.terms.cpu_load.add(self._cpu_ns - before)
                elif item is not None:
                    self._pass_on(list(self._decoder.flush(item)), item.codec, track)

    def _decode_or_skip(self, item: Received, damage_log: DamageLog, track: Track) -> None:
        """Decode a packet, or skip it to shed load. At the limit, skip the rest of the group."""
        shedding, number = self._shedding, item.stamp.number
        if shedding.admits(item.stamp, item.is_key, item.packet.pts):
            with track.span(READ, number):
                pictures = list(self._decoder.decode(item, damage_log))
            self._pass_on(pictures, item.codec, track)
            if not shedding.is_exhausted():
                return
            # Without a flush, delayed pictures would come out too late, with the next group.
            pictures = list(self._decoder.flush(End(item.stamp.epoch, item.codec)))
            self._pass_on(pictures, item.codec, track)
        else:
            self.status.drop(UNDECODED, 1)
        if shedding.is_exhausted():
            shedding.cut()
            self.packets.drop_group()

    def _pass_on(self, pictures: list[tuple[Picture, Any]], codec: Any, track: Track) -> None:
        for index, (picture, frame) in enumerate(pictures):
            arrived_ns = picture.arrival.arrived_ns
            self.status.show(
                *(arrived_ns, picture.arrival.epoch, picture.width, picture.height),
                describe_codec(codec),
                self._decoder.fingerprint(frame, arrived_ns),
            )
            self.is_shown = True
            if not self.slot.has_room():
                with track.span(READ, picture.number, WAIT_OUTPUT):
                    while not self.slot.has_room(TICK_S) and not self.stopping.is_set():
                        self._watch(blocked=True)
            if self.stopping.is_set():
                self.status.drop(STOPPED, len(pictures) - index)
                return
            if self.put(picture):
                self._shedding.count_offered()

    def _watch(self, blocked: bool = False) -> None:
        """Detect stalls. Cut a lost connection, unless decoding is behind or ``blocked``."""
        now_ns, state = self.clock(), self.status.state
        if now_ns - self._watched_ns > SUSPENDED_NS:
            self.status.ignore_silence(now_ns)
        self._watched_ns = now_ns
        self.status.tick(now_ns)
        if self.status.state != state:
            self.wake()
        behind = blocked or self._decoded_epoch != self.status.epoch
        if behind and self.status.has_arrivals():
            return
        if self.status.is_lost(now_ns, self.terms.start_timeout_s) and not self.was_cut:
            self.was_cut = True
            self.receiving.cut()
