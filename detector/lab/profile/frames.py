"""Pictures of the slowest frames for the report, taken from the annotated video of the run."""

from __future__ import annotations

import numpy as np

from detector.core.errors.machine import NotHereError
from detector.core.session.store import Session
from detector.core.types import Image
from detector.lab.analysis.loop.activities import Batches, LoopShape, activities_of, frame_times_ms
from detector.lab.profile.base import Occasion, Pass
from detector.lab.session.passes import FramesFacts, SlowFrame

SHOWN = 6
WIDTH = 480  # pixels of a picture in the report
FOLDER = "frames"


def picture_slowest(occasion: Occasion) -> FramesFacts:
    video = occasion.plain.document.each[0].outputs.get("video")
    if video is None:
        raise NotHereError("the run wrote no annotated video")
    times = frame_times_ms(occasion.plain.spans)
    slowest = sorted(np.argsort(-times)[:SHOWN].tolist())
    stages = _stage_times(occasion)
    rows = []
    for frame, picture in _read_pictures(video, slowest).items():
        name = f"{FOLDER}/{frame:06d}.jpg"
        _write_jpeg(occasion.session, name, picture)
        stage = max(stages[frame], key=lambda one: stages[frame][one])
        rows.append(SlowFrame(frame, float(times[frame]), stage, stages[frame][stage], name))
    return FramesFacts(sorted(rows, key=lambda row: -row.ms))


def _stage_times(occasion: Occasion) -> dict[int, dict[str, float]]:
    """Frame -> stage -> milliseconds. The inference of a batch counts for each of its frames."""
    activities = activities_of(occasion.plain.spans)
    batches = Batches(activities, LoopShape.of(occasion.plain.document.loop[0]))
    times: dict[int, dict[str, float]] = {}
    for one in activities:
        ms = (one.end_ns - one.start_ns) / 1e6
        frames = batches.inferred(one.number) if one.stage == "infer" else [one.number]
        for frame in frames:
            times.setdefault(frame, {})[one.stage] = ms
    return times


def _read_pictures(video: str, wanted: list[int]) -> dict[int, Image]:
    import cv2

    from detector.core import sources

    pictures: dict[int, Image] = {}
    with sources.open(video, decoder="av") as source:
        for number, frame in enumerate(source):
            if number in wanted:
                size = WIDTH, round(frame.image.shape[0] * WIDTH / frame.image.shape[1])
                small = cv2.resize(frame.image, size, interpolation=cv2.INTER_AREA)
                pictures[number] = np.asarray(small, np.uint8)
            if number >= max(wanted):
                break
    return pictures


def _write_jpeg(session: Session, name: str, picture: Image) -> None:
    import cv2

    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 80])
    if done:
        session.write_bytes(name, data.tobytes())


PASS = Pass(
    order=3,
    what="images of the slowest frames",
    facts=FramesFacts,
    run=picture_slowest,
    undisturbed="uses the plain run",
)
