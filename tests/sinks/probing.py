"""Small frames and clips for sinks, and readers of their output (ffprobe and ffmpeg)."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from detector.core import sinks
from detector.core.types import Detections, Frame, SourceInfo
from detector.tracks.book import Scene
from detector.tracks.counting import ZoneCount, ZoneEvent

NAMES = ("person", 'a "quoted", name')


def make_info(path: str = "in.mp4", **changes: Any) -> SourceInfo:
    fields = (
        dict(kind="video", width=64, height=48, fps=Fraction(25), time_base=Fraction(1, 12800))
        | changes
    )
    return SourceInfo(path, **fields)


def make_frame(
    index: int, pts: int | None = None, size: tuple[int, int] = (48, 64), **changes: Any
) -> Frame:
    """Return a grey frame. Its brightness tells the index modulo 16, even after lossy encoding."""
    pts = index * 512 if pts is None else pts
    image = np.full((*size, 3), brightness(index), np.uint8)
    return Frame(index, pts, pts / 12800, image, **changes)


def brightness(index: int) -> int:
    return 20 + index % 16 * 14


def one_person(score: float = 0.91) -> Detections:
    boxes = np.array([[1.234, 2, 30.5, 40.999]], np.float32)
    return Detections(boxes, np.array([score], np.float32), np.array([0]), NAMES)


def open_sink(
    name: str, target: Path, options: dict[str, Any] | None = None, **info: Any
) -> sinks.Sink:
    sink = sinks.open(name, target, **(options or {}))
    sink.open(make_info(**info))
    return sink


def write_video(
    path: Path, frames: list[Frame], options: dict[str, Any] | None = None, **info: Any
) -> sinks.Sink:
    sink = open_sink("video", path, options, **info)
    for frame in frames:
        sink.write(frame, Detections.empty())
    sink.close()
    return sink


class FinishedZones:
    """A stand-in for lines and zones that have stopped counting."""

    def finish(self) -> Scene:
        return Scene((), (), (), None)


def with_scene(detections: Detections, i: int) -> Detections:
    """Return detections with a scene: the object crosses a line at frame ``i``, and is counted."""
    event = ZoneEvent(i / 25, "gate", "crosses", "in", "person", i + 1, 16.0, 41.0)
    count = ZoneCount(i / 25, (i + 1) / 25, "gate", "person", {"in": 1, "out": 0}, None, None)
    scene = Scene((), (event,), (count,), FinishedZones())
    return replace(detections, track_ids=np.array([i + 1]), scene=scene)


def write_clip(path: Path, frames: int = 3) -> Path:
    """Write frames of ``make_frame`` as a clip (64x48, 25 per second), unless the file exists."""
    if path.exists():
        return path
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=25, options={"video_track_timescale": "12800"}
        )
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(frames):
            picture = av.VideoFrame.from_ndarray(make_frame(i).image, "bgr24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def probe(path: Path) -> dict[str, Any]:
    command = ["ffprobe", "-v", "error", "-show_streams", "-show_format", "-of", "json", str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def probe_pts(path: Path) -> list[int]:
    command = ["ffprobe", "-v", "error", "-select_streams", "v", "-show_entries", "frame=pts"]
    command += ["-of", "csv=p=0", str(path)]
    return [int(line.strip(",")) for line in subprocess.check_output(command, text=True).split()]


def decode(path: Path, width: int, height: int) -> np.ndarray:
    command = ["ffmpeg", "-v", "error", "-i", path, "-map", "0:v", "-fps_mode", "passthrough"]
    raw = subprocess.check_output([*command, "-f", "rawvideo", "-pix_fmt", "bgr24", "-"])
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)
