"""Opens the outputs of each camera, and the receivers of a live run's events.

DIR/CAMERA/detections-YYYY-MM-DD.jsonl    rows, always
DIR/CAMERA/zone-events-..., zone-counts-...csv    with --zones
DIR/CAMERA/video/                         with --record and --clips
DIR/CAMERA/tracks/YYYY-MM-DD/             with --save tracks
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from detector.core.errors import OutputError
from detector.core.stages.annotate import Style
from detector.core.types import Detections, Frame, Image
from detector.live.base import (
    APPEARS,
    ENDS,
    ENTERS,
    LEAVES,
    STAYS,
    Event,
    EventTarget,
    run_concurrently,
)
from detector.live.camera_folder import remove_if_empty
from detector.live.config import EventsConfig, RecordConfig
from detector.live.events.days import EventDays
from detector.live.events.filters import CLIPS, MQTT, SNAPSHOTS, WEBHOOK, EventFilters
from detector.live.events.home_assistant import HomeAssistant
from detector.live.events.rules import EventRules
from detector.live.options import keeps_video
from detector.live.recording.recorder import CameraRecorder
from detector.live.recording.recording import Quality
from detector.live.recording.retention import Retention
from detector.live.routing import Output
from detector.live.rows import CameraRows
from detector.live.sources.base import WEBCAM, Camera, Feed
from detector.live.tracks import CameraTracks
from detector.live.zone_rows import ZoneRows

JSONL, RECORDING, TRACKS, ZONES = "jsonl", "recording", "tracks", "zones"
CLOSE_S = 2.0  # time to finish a recording
EVENTS_CLOSE_S = 2.0  # longest wait for a receiver of events at the end of a run


class CreatedFolder:
    def __init__(self, path: Path) -> None:
        """Create the folder if it does not exist. Raises OutputError."""
        self.path = path
        self._made = [one for one in (path, *path.parents) if not one.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{path}: cannot create the output folder: {error.strerror}; choose another with -o"
            ) from error

    def remove_empty(self, cameras: Iterable[str]) -> None:
        """Remove the folders of these cameras, and those that ``__init__`` created, if empty."""
        for camera in cameras:
            remove_if_empty(self.path / camera)
        for place in self._made:
            with suppress(OSError):  # it is not empty, or does not exist
                place.rmdir()


class CameraOutputs:
    """Opens the outputs of each camera. ``folder``: the run's folder; None: write nothing.
    ``notice`` prints lines for the user, from any thread. ``style``: how subtitles draw boxes.
    ``hides``: whether objects are pixelated. ``filters`` select the events that start clips."""

    def __init__(
        self,
        folder: Path | None,
        record: RecordConfig,
        encoding: Quality,
        notice: Callable[[str], None],
        style: Style | None = None,
        *,
        filters: EventFilters | None = None,
        zones: bool = False,
        tracks: bool = False,
        hides: bool = False,
    ) -> None:
        self.created: set[str] = set()  # cameras whose folders this run created
        self._tracks, self._hides = tracks, hides
        self._folder, self._record, self._encoding = folder, record, encoding
        self._notice, self._zones, self._filters = notice, zones, filters or EventFilters()
        self._recordings: dict[str, _CameraRecording] = {}
        self._style = None if record.no_overlay else style
        self._retention = (
            Retention(folder, record.keep_days, record.keep_gb)
            if folder is not None and keeps_video(record)
            else None
        )

    def make(self, camera: Camera, feed: Feed) -> Sequence[Output]:
        """Open a camera's outputs, before its ``feed`` starts. Raises OutputError."""
        if self._folder is None:
            return []
        outputs: list[Output] = []
        with ExitStack() as opened:

            def add(output: Output) -> None:
                opened.callback(output.sink.close)
                outputs.append(output)

            folder = self._folder / camera.name
            rows = CameraRows(self._folder, camera, self._notice)
            add(Output(JSONL, rows, folder, counts=rows.counts, paused=lambda: rows.paused))
            if rows.created_folder:
                self.created.add(camera.name)
            if self._zones:
                zones = ZoneRows(self._folder, camera, self._notice)
                add(Output(ZONES, zones, folder, counts=zones.counts))
            if self._tracks:
                best = CameraTracks(self._folder, camera, self._notice)
                hides = self._hides
                add(Output(TRACKS, best, best.folder, lambda: hides, best.counts, best.see))
            if self._retention is not None:
                recorder = CameraRecorder(
                    *(self._folder, camera, self._record, self._notice),
                    retention=self._retention,
                    quality=self._encoding,
                    style=self._style,
                )
                recording = _CameraRecording(recorder, camera, feed)
                output = Output(RECORDING, recording, folder / "video", counts=recorder.counts)
                drawn, paused = lambda: recorder.wants_pictures, recorder.is_paused
                add(replace(output, drawn=drawn, paused=paused))
                self._recordings[camera.name] = recording
                if self._record.clips and self._filters.choose_clips(camera):
                    recording.accepts = partial(self._filters.passes, CLIPS)
            opened.pop_all()
            return outputs

    def handle(self, event: Event) -> None:
        if event.camera in self._recordings:
            self._recordings[event.camera].handle(event)


class _CameraRecording:
    """Connects a recorder to the camera's feed, or to a separate feed of its main stream."""

    def __init__(self, recorder: CameraRecorder, camera: Camera, feed: Feed) -> None:
        self.recorder = recorder
        # Selects the events that start clips. If None, detections start clips.
        self.accepts: Callable[[Event], bool] | None = None
        self._has_event = False
        # (zone, object) for each object in view or in a zone. A clip lasts until the set is empty.
        self._present: set[tuple[str | None, int | str | None]] = set()
        feed.decode_all_while(lambda: self.recorder.wants_pictures)
        self._main: Feed | None = None
        if camera.record_address is not None and not self.recorder.wants_pictures:
            from detector.live.sources.network import MainStreamFeed

            main = replace(camera, address=camera.record_address, record_address=None, rate=None)
            self._main = MainStreamFeed(main)
            self._main.listen(self.recorder.listener)
            self._main.start()
        elif camera.kind != WEBCAM:  # a webcam has no packets
            feed.listen(self.recorder.listener)

    def write(self, frame: Frame, detections: Detections) -> None:
        in_clip = None if self.accepts is None else self._has_event or bool(self._present)
        self.recorder.write(frame, detections, in_clip)
        self._has_event = False

    def handle(self, event: Event) -> None:
        if self.accepts is None:
            return
        zone, object_key = event.zone, event.class_name if event.track is None else event.track
        if event.event in (LEAVES, ENDS):  # an event without a zone ends the stay in all zones
            left = {one for one in self._present if one[1] == object_key and zone in (None, one[0])}
            self._present -= left
        if self.accepts(event):
            self._has_event = True
            if event.event in (APPEARS, ENTERS, STAYS):
                self._present.add((zone, object_key))

    def close(self) -> None:
        deadline = time.monotonic() + CLOSE_S
        if self._main is not None:
            self._main.stop()
        self.recorder.close(max(0.1, deadline - time.monotonic()))


class CameraEvents:
    """The event rules of a run, and all receivers of its events. ``more``: further receivers."""

    def __init__(
        self,
        folder: Path | None,
        config: EventsConfig,
        notice: Callable[[str], None],
        filters: EventFilters,
        more: Sequence[EventTarget] = (),
    ) -> None:
        """Open the receivers. Raises UsageError or OutputError."""
        self.rules = EventRules(time.perf_counter_ns(), time.time())
        self._snapshots, self._filters = None, filters
        self.home: HomeAssistant | None = None  # run.py calls ``publish_changes``
        with ExitStack() as opened:
            self._targets: list[EventTarget] = []
            for target in _targets(folder, config, notice, filters):
                opened.callback(target.close)
                self._targets.append(target)
                self.home = target if isinstance(target, HomeAssistant) else self.home
            if folder is not None:
                from detector.live.events.snapshots import Snapshots

                self._snapshots = Snapshots(folder, notice)
                if self.home is not None:
                    self._snapshots.show = self.home.publish_snapshot
            opened.pop_all()
        self._targets += more

    def send(self, event: Event) -> None:
        for target in self._targets:
            target.send(event)

    def add_snapshot(self, event: Event, picture: Callable[[], Image]) -> Event:
        if self._snapshots is None or not self._filters.passes(SNAPSHOTS, event):
            return event
        return self._snapshots.add_to(event, picture())

    def states(self) -> dict[tuple[str, str], tuple[bool, int]]:
        """Return the receivers' part of ``LiveFigures.outputs``."""
        receivers: list[Any] = [*self._targets, *filter(None, (self._snapshots,))]
        return {("", one.name): (one.failing, one.lost()) for one in receivers}

    def close(self) -> None:
        """Close the receivers concurrently."""

        def close(target: EventTarget) -> None:
            with suppress(Exception):
                target.close()

        if self._snapshots is not None:
            self._snapshots.close()
        run_concurrently((partial(close, target) for target in self._targets), EVENTS_CLOSE_S)

    def remove_created_files(self) -> None:
        for target in self._targets:
            if isinstance(target, EventDays):
                target.remove_created()


def _targets(
    folder: Path | None, config: EventsConfig, notice: Callable[[str], None], filters: EventFilters
) -> Iterator[EventTarget]:
    read_env = os.environ.get
    if folder is not None:
        yield EventDays(folder, notice=notice)
    if config.events is not None:
        from detector.live.events.stream import EventStream

        yield EventStream.open(config.events, notice)
    if config.webhook is not None:
        from detector.live.events.webhook import Webhook, find_address

        address = find_address(config.webhook)
        webhook = Webhook(address, read_env("DETECT_VIDEO_WEBHOOK_KEY"), notice=notice)
        webhook.accepts = partial(filters.passes, WEBHOOK)
        yield webhook
    if config.mqtt is not None:
        from detector.live.events.mqtt import MqttTarget

        user, password = read_env("DETECT_VIDEO_MQTT_USER"), read_env("DETECT_VIDEO_MQTT_PASSWORD")
        login = config.mqtt, user, password
        if (prefix := config.mqtt_discovery) is None:
            mqtt = MqttTarget(*login, notice=notice)
        else:
            mqtt = HomeAssistant(*login, prefix=prefix, notice=notice)
        mqtt.accepts = partial(filters.passes, MQTT)
        yield mqtt
