"""The work of the recorder's thread, in a class that tests can call without a thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import av

from detector.core.stages.annotate import Style
from detector.live.config import RecordConfig
from detector.live.recording.clips import RING_BYTES, Clips
from detector.live.recording.connection import Packet, RecordedStreams
from detector.live.recording.encoder import Encoder
from detector.live.recording.inbox import Closed, Drawn, Item, Sighting
from detector.live.recording.names import FOLDER
from detector.live.recording.samples import NS, SOUND, Sample, Track
from detector.live.recording.segments import Notice, Segments
from detector.live.recording.side_cars import SideCars

ANNOTATED, COPY, NONE = "annotated", "copy", "none"
# If a camera is silent for this long, its file is finished, so that users can watch or remove it.
SILENCE_NS = 10 * NS
# Annotated recordings skip a connection's first second of sound, which arrives in a burst.
SETTLE_NS = NS
# A new size begins a file at most once in this time. Until then, annotated pictures are scaled.
LEAST_NS = 10 * NS


@dataclass(frozen=True, slots=True)
class Quality:
    """The x264 options of annotated recordings."""

    preset: str = "superfast"
    crf: int = 23


class Recording:
    """The files of one camera, used by one thread. An error affects only the current item."""

    def __init__(
        self,
        folder: Path,
        camera: str,
        config: RecordConfig,
        quality: Quality,
        notice: Notice,
        style: Style | None = None,
    ) -> None:
        self.mode = COPY if config.record == NONE and config.clips else config.record
        self._camera, self._quality, self._notice = camera, quality, notice
        before_s = config.clip_before if config.clips else 0.0
        self._side_cars = (
            SideCars(camera, style, before_s, notice)
            if style is not None and self.mode == COPY
            else None
        )
        self.segments = Segments(folder / FOLDER, camera, config.segment, notice, self._side_cars)
        self._clips = (
            Clips(self.segments, config.clip_before, config.clip_after) if config.clips else None
        )
        self._encoder: Encoder | None = None
        self._encoder_key: object = None  # size, epoch and aspect ratio of the encoder
        self._connection: RecordedStreams | None = None
        self._sound_connection: RecordedStreams | None = None  # gives annotated files their sound
        self._opened_ns: int | None = None  # arrival of the connection's first packet
        self._last_ns = 0  # arrival of the last sample
        self._changed_ns: int | None = None  # arrival of the last new size that began a file
        self._is_new = True  # the connection's size is not known yet
        self._epoch = 0  # epoch of the last drawn picture
        self._printed: set[str] = set()

    def handle(self, item: Item) -> None:
        if isinstance(item, Drawn):
            self._encode(item)
        elif isinstance(item, Packet):
            self._packet(item)
        elif isinstance(item, Sighting):
            self._add_result(item)
        elif isinstance(item, RecordedStreams):
            self._open(item)
        elif isinstance(item, Closed):
            self._close_connection()

    def _add_result(self, sighting: Sighting) -> None:
        if self._clips is not None:
            self._clips.add_result(sighting.arrived_ns, sighting.in_clip)
            if self._clips.short:
                self._notice_once(
                    f"its video fills the {RING_BYTES // 10**6} MB buffer in less than "
                    "--clip-before, so clips start later"
                )
        if self._side_cars is not None and sighting.detections is not None:
            self._side_cars.add_detections(sighting.arrived_ns, sighting.detections, sighting.size)

    @property
    def wants_boxes(self) -> bool:
        """True if each ``Sighting`` needs its detections. May change during the run."""
        return self._side_cars is not None and self.mode == COPY

    def use_annotated(self, why: str) -> None:
        self.mode = ANNOTATED
        self._notice_once(f"{why}; recording annotated video instead")

    def _notice_once(self, text: str) -> None:
        """Print each text only once, because a camera may reconnect every minute."""
        if text not in self._printed:
            self._printed.add(text)
            self._notice(f"{self._camera}: {text}")

    def _open(self, connection: RecordedStreams) -> None:
        self._connection, self._opened_ns, self._is_new = connection, None, True
        for note in connection.notes:
            self._notice_once(note)
        if self.mode == COPY and connection.video is None:
            self.use_annotated("its video cannot be copied")
        if self.mode == COPY:
            self._begin(connection.tracks)

    def _packet(self, packet: Packet) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._opened_ns is None:
            self._opened_ns = packet.arrived_ns
        if self.mode == COPY:
            samples = connection.samples(packet)
            # New parameter sets of H.265 need a new file: MP4 has them only at the beginning.
            is_free = self._is_new or (connection.video and connection.video.codec == "hevc")
            if connection.changed and (is_free or self._may_change(packet.arrived_ns)):
                connection.changed = self._is_new = False
                self._begin(connection.tracks)
            for sample in samples:
                self._write(sample)
        elif packet.arrived_ns - self._opened_ns >= SETTLE_NS:
            for sample in connection.samples(packet):
                if sample.track == SOUND and self._sound_connection is connection:
                    self._write(sample)

    def _may_change(self, arrived_ns: int) -> bool:
        if self._changed_ns is not None and arrived_ns - self._changed_ns < LEAST_NS:
            self._notice_once(
                f"picture size changes often; this begins a file at most every {LEAST_NS // NS} s"
            )
            return False
        self._changed_ns = arrived_ns
        return True

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if self.mode == COPY:  # if annotated, drawn pictures may still be queued
            for sample in connection.flush() if connection is not None else ():
                self._write(sample)
            self._end()

    def _encode(self, picture: Drawn) -> None:
        key_of_encoder = (picture.size, picture.epoch, picture.aspect_ratio)
        if (
            self._encoder is None
            or picture.epoch != self._epoch
            or (key_of_encoder != self._encoder_key and self._may_change(picture.arrived_ns))
        ):
            self._epoch = picture.epoch
            if not self._begin_encoder(picture):
                return
            self._encoder_key = key_of_encoder
        assert self._encoder is not None
        key = self._clips is None and self.segments.wants_key(picture.arrived_ns)
        for sample in self._encoder.encode(picture.yuv, picture.arrived_ns, picture.utc_s, key=key):
            self._write(sample)

    def _begin_encoder(self, picture: Drawn) -> bool:
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None
        height, width = picture.yuv.shape[0] * 2 // 3, picture.yuv.shape[1]
        try:
            self._encoder = Encoder(
                (height, width),
                picture.aspect_ratio,
                preset=self._quality.preset,
                crf=self._quality.crf,
            )
        except (av.FFmpegError, ValueError) as error:
            self._notice_once(f"frames of {width}x{height} cannot be encoded: {error}")
            return False
        tracks: list[Track] = [self._encoder.track]
        self._sound_connection = connection = self._connection
        if connection is not None and connection.sound is not None:
            connection.changed = False
            tracks.append(connection.sound)
        self._begin(tracks)
        return True

    def _begin(self, tracks: list[Track]) -> None:
        (self._clips or self.segments).begin(tracks)

    def _write(self, sample: Sample) -> None:
        self._last_ns = sample.arrived_ns
        (self._clips or self.segments).write(sample)

    def _end(self) -> None:
        (self._clips or self.segments).finish()

    def check(self, now_ns: int) -> None:
        """Check for a full disk, a silent camera and late detections, about once a second."""
        self.segments.check_disk(now_ns)
        if self.segments.open and now_ns - self._last_ns > SILENCE_NS:
            self._end()
        if self._side_cars is not None:
            self._side_cars.close_overdue(now_ns)

    def finish(self) -> None:
        self._end()
        if self._side_cars is not None:
            self._side_cars.finish()
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None
