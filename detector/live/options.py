"""The options of a live run that other runs do not have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from detector.core import sinks
from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.errors.writing import is_null_device
from detector.core.run.plan import PlanDraft
from detector.live.config import EventsConfig, RecordConfig
from detector.live.recording.recording import Quality
from detector.live.sources import make_terms
from detector.live.sources.base import Terms
from detector.live.sources.cameras import is_camera_list

FOLDER = "live"  # default folder of outputs; sessions are in runs/live
DRAWN = "zones.yaml"  # file in FOLDER: the lines and zones that viewers of the page drew
# --quality -> x264 preset. There are no B-frames, because recordings are encoded without delay.
PRESETS = {"fast": "ultrafast", "balanced": "superfast", "small": "veryfast"}
CRF = 23

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options. ``specs``: cameras and camera lists. ``folder``: for outputs; None: no outputs.
    ``lists``: path of each camera list -> its ``stamp``, taken before the list is read."""

    specs: tuple[str, ...]
    config: Config
    terms: Terms
    duration_s: float | None
    folder: Path | None
    encoding: Quality
    tracks: bool
    lists: Mapping[str, Stamp]

    @classmethod
    def of(cls, specs: Sequence[str], asked: PlanDraft) -> LiveOptions:
        config = asked.config
        _refuse_options_of_files(config, asked)
        output = config.output
        _refuse_outputs(config)
        nothing = output.output is not None and is_null_device(output.output)
        duration_s = asked.reading.duration_s
        return cls(
            specs=tuple(specs),
            config=config,
            terms=make_terms(asked.reading),
            duration_s=None if duration_s is None else float(duration_s),
            folder=None if nothing else Path(output.output or FOLDER),
            encoding=Quality(
                output.preset or PRESETS[output.quality or "balanced"],
                CRF if output.crf is None else output.crf,
            ),
            tracks="tracks" in (output.save or ()),
            lists={spec: stamp(spec) for spec in specs if is_camera_list(spec)},
        )


def with_drawn_zones(config: Config) -> Config:
    """Return the options. Without --zones, they get the lines and zones that viewers drew in
    earlier runs with the same folder."""
    output = config.output.output
    file = Path(output or FOLDER, DRAWN)
    if config.value("zones", "") is not None or (output is not None and is_null_device(output)):
        return config
    if file.is_symlink() or not file.is_file():
        return config
    return config.with_options({"zones": str(file)})


def stamp(path: str) -> Stamp:
    """Return a value that changes with a file's content; None if the file does not exist."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def keeps_video(record: RecordConfig) -> bool:
    return record.record != "none" or record.clips


def _refuse_options_of_files(config: Config, asked: PlanDraft) -> None:
    given, output = config.input, config.output
    wrong = {
        "--save": (
            bool({*(output.save or ())} - {"tracks"}),
            "cameras only have --save tracks; rows are always written, --record copy writes video",
        ),
        "--no-video": (output.no_video, "no video is written without --record"),
        "--only-detections": (output.only_detections, "rows of cameras cover every frame"),
        "--rect": (config.runtime.rect, "all cameras share one network input"),
        "--save-times": (output.save_times, "every row of a camera has the frame's age"),
        "--lead": (output.lead, "it only applies to --only-detections"),
        "--start": (asked.reading.start_s, "a camera has no start"),
        "--skip-still": (given.skip_still, "every frame that is taken is inferred"),
        "--stride": (given.stride != 1, 'cameras have the key "rate" in cameras.yaml'),
        "--video-track": (given.video_track, "the first video track of a stream is read"),
        "--rate": (given.rate, "frames of cameras carry timestamps"),
        "--decoder": (given.decoder != "auto", "PyAV reads streams, and OpenCV reads webcams"),
    }
    for flag, (is_given, why) in wrong.items():
        if is_given not in (None, False):
            raise UsageError(f"{flag} is for files, not for cameras: {why}; remove {flag}")
    target = output.output
    if target == "-" or (
        target is not None
        and not target.endswith(os.sep)
        and not os.path.isdir(target)
        and not is_null_device(target)
        and Path(target).suffix
    ):
        raise UsageError(
            f"--output {target}: cameras write to a folder, DIR/CAMERA/...; give -o {FOLDER}/"
        )


def _refuse_outputs(config: Config) -> None:
    output, record, events = config.output, config.of(RecordConfig), config.of(EventsConfig)
    if events.mqtt_discovery is not None and events.mqtt is None:
        raise UsageError("--mqtt-discovery needs a broker; add --mqtt mqtt://HOST/TOPIC")
    if output.encoder not in (None, "x264"):
        raise UsageError(
            f"--encoder {output.encoder} is for files, not for cameras: recordings are encoded by "
            "x264; remove it"
        )
    sinks.find("video").check_options(".mp4", config.as_dict()["output"])
    if keeps_video(record) and config.drawing.blur and record.record != "annotated":
        flag = f"--record {record.record}" if record.record != "none" else "--clips"
        raise UsageError(
            f"--blur and {flag} contradict each other: the recording keeps the camera's own "
            "video; use --record annotated"
        )
