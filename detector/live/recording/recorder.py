"""The recorder of one camera, whose thread writes pictures and packets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from detector.core.errors.text import counted
from detector.core.stages.annotate import Style
from detector.core.types import Detections, Frame
from detector.live.camera_folder import lock_folder
from detector.live.config import RecordConfig
from detector.live.recording.connection import Packet, RecordedStreams
from detector.live.recording.encoder import to_yuv
from detector.live.recording.inbox import Closed, Drawn, Inbox, Sighting
from detector.live.recording.names import FOLDER, RECORDINGS, finish_leftovers
from detector.live.recording.recording import ANNOTATED, COPY, Quality, Recording
from detector.live.recording.retention import Retention
from detector.live.recording.segments import Notice
from detector.live.sources.base import Camera, PacketListener

CHECK_S = 1.0  # between checks for a full disk, a silent camera and old recordings


class CameraRecorder:
    """Records one camera into ``folder/NAME/video/``. Register ``listener`` with a feed."""

    def __init__(
        self,
        folder: Path,
        camera: Camera,
        config: RecordConfig,
        notice: Notice,
        *,
        retention: Retention | None = None,
        quality: Quality | None = None,
        style: Style | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """``retention`` deletes old recordings. ``style``: how subtitles draw boxes. ``notice``
        may be called from any thread. Raises OutputError."""
        self._clock, self._notice, self._name = clock, notice, camera.name
        self._reported = False
        self._folder = folder / camera.name / FOLDER
        self._retention = retention or Retention(folder, config.keep_days, config.keep_gb)
        self._lock = self._take_folder()
        self._inbox = Inbox()
        self._recording = Recording(
            folder / camera.name, camera.name, config, quality or Quality(), notice, style
        )
        if camera.kind == "webcam" and self._recording.mode == COPY:
            self._recording.use_annotated("a webcam has no packets to copy")
        self._dropped = self._failed = 0
        self._clips = config.clips
        self.listener: PacketListener = _Listener(self)
        self._thread = threading.Thread(
            target=self._work, name=f"record {camera.name}", daemon=True
        )
        self._thread.start()

    def _take_folder(self) -> int:
        lock = lock_folder(self._folder, RECORDINGS)
        try:
            for note in finish_leftovers(self._folder):
                self._notice(note)
        except OSError as error:
            self._notice(f"{self._folder}: could not finish a killed run's recording: {error}")
        return lock

    @property
    def wants_pictures(self) -> bool:
        return self._recording.mode == ANNOTATED

    def is_paused(self) -> bool:
        return self._recording.segments.paused_ns is not None

    def write(self, frame: Frame, detections: Detections, in_clip: bool | None = None) -> None:
        """Record a frame. ``in_clip``: a clip needs it; by default, if anything was detected."""
        try:
            self._queue(frame, detections, len(detections) > 0 if in_clip is None else in_clip)
        except Exception as error:  # the loop must continue
            self._fail(error)

    def _queue(self, frame: Frame, detections: Detections, in_clip: bool) -> None:
        arrival = frame.arrival
        if arrival is None:
            return
        now = self._clock()
        if self.wants_pictures:
            source = frame.source
            if self._inbox.picture_fits(now):
                picture = Drawn(
                    yuv=to_yuv(frame.image),
                    size=(frame.image.shape[0], frame.image.shape[1]),
                    arrived_ns=arrival.arrived_ns,
                    utc_s=arrival.utc_s,
                    epoch=arrival.epoch,
                    aspect_ratio=source.sample_aspect_ratio if source else Fraction(1),
                )
                self._dropped += not self._inbox.put_picture(picture, now)
            else:
                self._dropped += 1
        boxes = self._recording.wants_boxes
        if self._clips or boxes:
            sighting = Sighting(
                arrival.arrived_ns, in_clip, detections if boxes else None, frame.size
            )
            self._inbox.put_message(sighting, now)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Write what is queued. After the timeout, return False; the next run repairs the file."""
        self._inbox.close()
        self._thread.join(timeout_s)
        ended = not self._thread.is_alive()
        if self._dropped and not self._reported:
            self._reported = True
            what, why = "packet", "the disk was too slow"
            if self.wants_pictures:
                what, why = "frame", "encoding was too slow; try --preset ultrafast"
            dropped = counted(self._dropped, what, "was")
            self._notice(f"{self._name}: {dropped} not recorded: {why}")
        if ended and self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        return ended

    def counts(self) -> dict[str, int]:
        """Return counts of the run. "dropped": lost for lack of time; "failed": internal errors."""
        files = self._recording.segments
        return {
            "written": files.written,
            "dropped": self._dropped,
            "lost": files.lost,
            "refused": files.refused,
            "failed": self._failed,
            "files": files.files,
            "bytes": files.bytes,
        }

    def _work(self) -> None:
        next_check = 0
        while not self._inbox.ended:
            item = self._inbox.take(CHECK_S)
            try:
                if item is not None:
                    self._recording.handle(item)
                if item is None or self._clock() >= next_check:
                    now = self._clock()
                    next_check = now + int(CHECK_S * 1e9)
                    self._recording.check(now)
                    self._retention.sweep_if_due()
            except Exception as error:  # continue with the next item
                self._fail(error)
        with suppress(Exception):
            self._recording.finish()

    def _fail(self, error: Exception) -> None:
        self._failed += 1
        if self._failed == 1:
            self._notice(f"{self._folder}: recording failed: {error!r}")


class _Listener:
    """Queues copies of packets. After a drop, skips video to the next key frame. Never raises."""

    def __init__(self, recorder: CameraRecorder) -> None:
        self._recorder = recorder
        self._broken = False

    def opened(self, streams: Any, arrived_ns: int, utc_s: float) -> None:
        recorder = self._recorder
        self._broken = False
        try:
            recorder._inbox.put_message(RecordedStreams(streams), recorder._clock())
        except Exception as error:
            recorder._fail(error)

    def packet(self, packet: Any, arrived_ns: int, utc_s: float) -> None:
        try:
            self._queue_packet(packet, arrived_ns, utc_s)
        except Exception as error:
            self._recorder._fail(error)

    def _queue_packet(self, packet: Any, arrived_ns: int, utc_s: float) -> None:
        recorder = self._recorder
        if not packet.size:
            return
        is_video = packet.stream.type == "video"
        if is_video and recorder.wants_pictures:
            return
        if is_video and self._broken and not packet.is_keyframe:
            recorder._dropped += 1
            return
        copied = Packet.copy(packet, arrived_ns, utc_s)
        fits = recorder._inbox.put_packet(copied, recorder._clock())
        recorder._dropped += not fits
        if is_video:
            self._broken = not fits

    def closed(self) -> None:
        self._recorder._inbox.put_message(Closed(), self._recorder._clock())
