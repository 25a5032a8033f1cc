"""The possible gain of optical flow over the tracks' motion, in frames that are not inferred: boxes
of the last look are moved by the median motion of 20 points (Lucas and Kanade, in pyramids, on
pictures of half the size)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.types import Detections, Image
from detector.lab.analysis.accuracy.tracking import track_accuracy
from detector.tracks.trackers.bytetrack import BytetrackTracker
from following.footage import Footage
from following.library import CONF, LOW
from following.steady import watch

HALF = 0.5
COLUMNS, ROWS = np.linspace(0.25, 0.75, 4), np.linspace(0.2, 0.8, 5)  # of a box
LEAST = 5  # least number of points that must be found again
WAYS = ("as it stood", "tracks", "flow")


def compare(footage: Footage, fps: float, every: int) -> list[tuple[str, float, float]]:
    """Yield how boxes are moved, HOTA, and CPU ms of the flow per frame without inference."""
    boxes = watch(footage.source, conf=LOW)
    pictures = _grey(footage.source)
    rows = []
    for way in WAYS:
        tracker, found, used_s, spared = BytetrackTracker(CONF), list[Detections](), 0.0, 0
        for at, one in enumerate(boxes):
            if at % every == 0 or at == 1:
                ids = tracker.update(one.boxes, one.scores, one.class_ids, at / fps)
                found.append(replace(one, track_ids=ids).only(one.scores >= CONF))
                continue
            spared += 1
            if way == "tracks":
                found.append(tracker.coasting(tracker.seen(), at / fps))
            elif way == "flow":
                began = time.process_time()
                found.append(_moved(found[-1], pictures[at - 1], pictures[at]))
                used_s += time.process_time() - began
            else:
                found.append(found[-1])
        hota = track_accuracy(footage.labels, found).hota or 0.0
        rows.append((way, hota, 1e3 * used_s / spared))
    return rows


def _grey(source: str) -> Sequence[Image]:
    capture, pictures = cv2.VideoCapture(source), []
    while (read := capture.read())[0]:
        small = cv2.resize(read[1], None, fx=HALF, fy=HALF, interpolation=cv2.INTER_AREA)
        pictures.append(cv2.cvtColor(small, cv2.COLOR_BGR2GRAY).astype(np.uint8))
    return pictures


def _moved(found: Detections, before: Image, after: Image) -> Detections:
    if not len(found):
        return found
    start = np.concatenate([_points(box) for box in found.boxes]).astype(np.float32)[:, None]
    end, there, _ = cv2.calcOpticalFlowPyrLK(
        before, after, start, start.copy(), winSize=(13, 13), maxLevel=2
    )
    ways = ((end - start) / HALF).reshape(len(found), -1, 2)
    seen = there.reshape(len(found), -1) == 1
    boxes = found.boxes.copy()
    for i, enough in enumerate(seen.sum(axis=1) >= LEAST):
        if enough:
            boxes[i] += np.tile(np.median(ways[i][seen[i]], axis=0), 2)
    return replace(found, boxes=boxes)


def _points(box: NDArray[np.float32]) -> NDArray[np.float64]:
    x, y = (box[at] + part * (box[at + 2] - box[at]) for at, part in ((0, COLUMNS), (1, ROWS)))
    return HALF * np.array([(one, other) for one in x for other in y])
