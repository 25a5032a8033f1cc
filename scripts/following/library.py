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

CONF, LOW = 0.25, 0.1  # least scores: to start a track; for ByteTrack
EACH = 100_000  # more than the ids of a class


@dataclass(frozen=True, slots=True)
class Compared:
    clip: str
    tracker: str
    who: str  # "ours", "theirs", "no tracker"
    figures: TrackAccuracy


def compare(footage: Footage, interpreter: Path, fps: float) -> list[Compared]:
    """Compare. ``interpreter``: a Python that has ``trackers``. Only boxes from ``CONF`` on are
    judged, because no others are written."""
    boxes = watch(footage.source, conf=LOW)
    nobody = [
        replace(one, track_ids=np.arange(len(one)) + EACH * at) for at, one in enumerate(boxes)
    ]
    rows = [Compared(footage.name, "", "no tracker", _judge(footage, nobody))]
    for name in trackers.names():
        ours = _ours(name, boxes, fps)
        theirs = _theirs(interpreter, name, boxes, fps)
        rows.append(Compared(footage.name, name, "ours", _judge(footage, ours)))
        rows.append(Compared(footage.name, name, "theirs", _judge(footage, theirs)))
    return rows


def _judge(footage: Footage, found: Sequence[Detections]) -> TrackAccuracy:
    return track_accuracy(footage.labels, [one.only(one.scores >= CONF) for one in found])


def _ours(name: str, boxes: Sequence[Detections], fps: float) -> list[Detections]:
    tracker = trackers.find(name)(CONF)
    return [
        replace(one, track_ids=tracker.update(one.boxes, one.scores, one.class_ids, at / fps))
        for at, one in enumerate(boxes)
    ]


def _theirs(
    interpreter: Path, name: str, boxes: Sequence[Detections], fps: float
) -> list[Detections]:
    """Run their tracker, once per class because it ignores classes."""
    ids = [np.full(len(one), -1, np.int64) for one in boxes]
    for kind in (0, 1):
        places = [np.flatnonzero(one.class_ids == kind) for one in boxes]
        given = [
            np.column_stack([one.boxes[at], one.scores[at]]).tolist()
            for one, at in zip(boxes, places, strict=True)
        ]
        done = subprocess.run(
            [interpreter, Path(__file__).with_name("other_library.py"), name, str(CONF), str(fps)],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=True,
        )
        for own, at, theirs in zip(ids, places, json.loads(done.stdout), strict=True):
            found = np.array(theirs, np.int64)
            own[at] = np.where(found < 0, -1, found + EACH * kind)
    return [replace(one, track_ids=own) for one, own in zip(boxes, ids, strict=True)]
