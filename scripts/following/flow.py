"""Compare ways to place boxes in frames without inference: optical flow, tracks, and no motion.

Optical flow (pyramidal Lucas-Kanade, on pictures of half the size) moves each box of the previous
frame by the median motion of 20 points in that box.
"""

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
COLUMNS, ROWS = np.linspace(0.25, 0.75, 4), np.linspace(0.2, 0.8, 5)  # shares of a box's sides
LEAST = 5  # a box is moved only if at least this many points were tracked
MOTIONS = ("none", "tracks", "flow")


def compare(footage: Footage, fps: float, every: int) -> list[tuple[str, float, float]]:
    """Return rows of (how boxes are moved, HOTA, CPU ms of flow per skipped frame)."""
    boxes = watch(footage.source, conf=LOW)
    pictures = _grey(footage.source)
    rows = []
    for motion in MOTIONS:
        tracker, results, flow_s, skipped = BytetrackTracker(CONF), list[Detections](), 0.0, 0
        for at, detections in enumerate(boxes):
            if at % every == 0 or at == 1:
                ids = tracker.update(
                    detections.boxes, detections.scores, detections.class_ids, at / fps
                )
                results.append(replace(detections, track_ids=ids).only(detections.scores >= CONF))
                continue
            skipped += 1
            if motion == "tracks":
                results.append(tracker.coasting(tracker.seen(), at / fps))
            elif motion == "flow":
                began = time.process_time()
                results.append(_moved(results[-1], pictures[at - 1], pictures[at]))
                flow_s += time.process_time() - began
            else:
                results.append(results[-1])
        hota = track_accuracy(footage.labels, results).hota or 0.0
        rows.append((motion, hota, 1e3 * flow_s / skipped))
    return rows


def _grey(source: str) -> Sequence[Image]:
    capture, pictures = cv2.VideoCapture(source), []
    while (read := capture.read())[0]:
        small = cv2.resize(read[1], None, fx=HALF, fy=HALF, interpolation=cv2.INTER_AREA)
        pictures.append(cv2.cvtColor(small, cv2.COLOR_BGR2GRAY).astype(np.uint8))
    return pictures


def _moved(detections: Detections, before: Image, after: Image) -> Detections:
    if not len(detections):
        return detections
    start = np.concatenate([_points(box) for box in detections.boxes]).astype(np.float32)[:, None]
    end, status, _ = cv2.calcOpticalFlowPyrLK(
        before, after, start, start.copy(), winSize=(13, 13), maxLevel=2
    )
    shifts = ((end - start) / HALF).reshape(len(detections), -1, 2)
    tracked = status.reshape(len(detections), -1) == 1
    boxes = detections.boxes.copy()
    for i, enough in enumerate(tracked.sum(axis=1) >= LEAST):
        if enough:
            boxes[i] += np.tile(np.median(shifts[i][tracked[i]], axis=0), 2)
    return replace(detections, boxes=boxes)


def _points(box: NDArray[np.float32]) -> NDArray[np.float64]:
    x, y = (box[at] + part * (box[at + 2] - box[at]) for at, part in ((0, COLUMNS), (1, ROWS)))
    return HALF * np.array([(column, row) for column in x for row in y])
