"""Our trackers compared with roboflow's ``trackers`` and with no tracker, on the same boxes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from detector.core.types import Detections
from detector.lab.analysis.accuracy.tracking import track_accuracy
from detector.lab.session.evaluation import TrackAccuracy
from detector.tracks import trackers
from following.footage import Footage
from following.steady import watch

CONF, LOW = 0.25, 0.1  # lowest score that starts a track; lowest that ByteTrack uses
EACH = 100_000  # offset between the ids of two classes or frames; no class or frame has so many ids


@dataclass(frozen=True, slots=True)
class Compared:
    clip: str
    tracker: str
    who: str  # "ours", "theirs", "no tracker"
    figures: TrackAccuracy


def compare(footage: Footage, interpreter: Path, fps: float) -> list[Compared]:
    """Compare on one clip. ``interpreter``: a Python that has roboflow's ``trackers``. Trackers get
    all boxes, but we judge only those that detect-video writes, whose score is ``CONF`` or more."""
    boxes = watch(footage.source, conf=LOW)
    untracked = [
        replace(detections, track_ids=np.arange(len(detections)) + EACH * index)
        for index, detections in enumerate(boxes)
    ]
    rows = [Compared(footage.name, "", "no tracker", _judge(footage, untracked))]
    for name in trackers.names():
        ours = _ours(name, boxes, fps)
        theirs = _theirs(interpreter, name, boxes, fps)
        rows.append(Compared(footage.name, name, "ours", _judge(footage, ours)))
        rows.append(Compared(footage.name, name, "theirs", _judge(footage, theirs)))
    return rows


def _judge(footage: Footage, detections: Sequence[Detections]) -> TrackAccuracy:
    return track_accuracy(
        footage.labels, [frame.only(frame.scores >= CONF) for frame in detections]
    )


def _ours(name: str, boxes: Sequence[Detections], fps: float) -> list[Detections]:
    tracker = trackers.find(name)(CONF)
    return [
        replace(
            detections,
            track_ids=tracker.update(
                detections.boxes, detections.scores, detections.class_ids, index / fps
            ),
        )
        for index, detections in enumerate(boxes)
    ]


def _theirs(
    interpreter: Path, name: str, boxes: Sequence[Detections], fps: float
) -> list[Detections]:
    """Run their tracker once per class, because it ignores classes."""
    ids = [np.full(len(detections), -1, np.int64) for detections in boxes]
    for kind in (0, 1):
        indices_by_frame = [np.flatnonzero(detections.class_ids == kind) for detections in boxes]
        inputs = [
            np.column_stack([detections.boxes[indices], detections.scores[indices]]).tolist()
            for detections, indices in zip(boxes, indices_by_frame, strict=True)
        ]
        completed = subprocess.run(
            [interpreter, Path(__file__).with_name("other_library.py"), name, str(CONF), str(fps)],
            input=json.dumps(inputs),
            capture_output=True,
            text=True,
            check=True,
        )
        for frame_ids, indices, theirs in zip(
            ids, indices_by_frame, json.loads(completed.stdout), strict=True
        ):
            their_ids = np.array(theirs, np.int64)
            frame_ids[indices] = np.where(their_ids < 0, -1, their_ids + EACH * kind)
    return [
        replace(detections, track_ids=frame_ids)
        for detections, frame_ids in zip(boxes, ids, strict=True)
    ]
