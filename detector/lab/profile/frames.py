"""Save pictures of the slowest frames, taken from the run's annotated video, for the report."""

from __future__ import annotations

import numpy as np

from detector.core.errors.machine import NotHereError
from detector.core.session.store import Session
from detector.core.types import Image
from detector.lab.profile.base import Occasion, Pass
from detector.lab.session.passes import FramesFacts, SlowFrame
from detector.lab.why import explain

SHOWN = 6
WIDTH = 480  # pixels of a picture in the report
FOLDER = "frames"


def save_slowest(occasion: Occasion) -> FramesFacts:
    video = occasion.plain.document.each[0].outputs.get("video")
    if video is None:
        raise NotHereError("the run wrote no annotated video")
    slowest = {one.frame: one for one in explain(occasion.plain, None, SHOWN, clip=False).frames}
    rows = []
    for frame, picture in _read_pictures(video, sorted(slowest)).items():
        name = f"{FOLDER}/{frame:06d}.jpg"
        _write_jpeg(occasion.session, name, picture)
        calls = [part for part in slowest[frame].parts if not part.waits]
        longest = max(calls, key=lambda part: part.ms)
        rows.append(SlowFrame(frame, slowest[frame].ms, longest.stage, longest.ms, name))
    return FramesFacts(sorted(rows, key=lambda row: -row.ms))


def _read_pictures(video: str, numbers: list[int]) -> dict[int, Image]:
    import cv2

    from detector.core import sources

    pictures: dict[int, Image] = {}
    with sources.open(video, decoder="av") as source:
        for number, frame in enumerate(source):
            if number in numbers:
                size = WIDTH, round(frame.image.shape[0] * WIDTH / frame.image.shape[1])
                small = cv2.resize(frame.image, size, interpolation=cv2.INTER_AREA)
                pictures[number] = np.asarray(small, np.uint8)
            if number >= max(numbers):
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
    run=save_slowest,
    undisturbed="uses the plain run",
)
