"""Pictures of the slowest frames of the plain run, out of its annotated video, so that a report can show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from detector.analysis.loop.activities import activities_of, frame_times_ms
from detector.jobs.profile.base import NotHereError, Occasion

ORDER = 3
WHAT = "pictures of the slowest frames"
UNDISTURBED = "nothing is run again"
SHOWN = 6
WIDTH = 480  # pixels of a picture in the report
FOLDER = "frames"


def run(occasion: Occasion) -> dict[str, Any]:
    video = occasion.plain.document.get("outputs", {}).get("video")
    if video is None:
        raise NotHereError("the run wrote no annotated video")
    times = frame_times_ms(occasion.plain.spans)
    slowest = sorted(np.argsort(-times)[:SHOWN].tolist())
    stages = _stage_times(occasion)
    rows = []
    for frame, picture in _pictures(video, slowest).items():
        name = f"{FOLDER}/{frame:06d}.jpg"
        _write(occasion.session.path(name), picture)
        stage = max(stages[frame], key=lambda one: stages[frame][one])
        rows.append(
            {
                "frame": frame,
                "ms": float(times[frame]),
                "stage": stage,
                "stage_ms": stages[frame][stage],
                "file": name,
            }
        )
    return {"rows": sorted(rows, key=lambda row: -row["ms"])}


def _stage_times(occasion: Occasion) -> dict[int, dict[str, float]]:
    """Milliseconds of each frame's stages; a batch's inference counts for each of its frames."""
    batch = occasion.plain.document["batch"]
    found: dict[int, dict[str, float]] = {}
    for one in activities_of(occasion.plain.spans):
        ms = (one.end_ns - one.start_ns) / 1e6
        frames = (
            range(one.number * batch, (one.number + 1) * batch)
            if one.stage == "infer"
            else [one.number]
        )
        for frame in frames:
            found.setdefault(frame, {})[one.stage] = ms
    return found


def _pictures(video: str, wanted: list[int]) -> dict[int, Any]:
    import cv2

    from detector import sources

    found = {}
    with sources.open(video, decoder="av") as source:
        for number, frame in enumerate(source):
            if number in wanted:
                height = round(frame.image.shape[0] * WIDTH / frame.image.shape[1])
                found[number] = cv2.resize(
                    frame.image, (WIDTH, height), interpolation=cv2.INTER_AREA
                )
            if number >= max(wanted):
                break
    return found


def _write(path: Path, picture: Any) -> None:
    import cv2

    path.parent.mkdir(exist_ok=True)
    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 80])
    if done:
        path.write_bytes(data.tobytes())
