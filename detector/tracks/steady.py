"""Smooth the drawn boxes (--smooth): filter them along their tracks, and predict missed boxes.

Uses the 1 Euro filter (Casiez, Roussel and Vogel, CHI 2012): a low pass whose cutoff rises with
speed. Speeds are relative to the size of the box, so that one setting serves all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from detector.core.types import Detections
from detector.tracks.motion import Floats
from detector.tracks.tracker import NONE, Tracker

HOLD_S = 0.5  # how long a missed object is still drawn
CUTOFF_HZ = 1.0  # cutoff for an object at rest
PER_SPEED = 3.0  # Hz added for a speed of one box size per second
SPEED_CUTOFF_HZ = 1.0


@dataclass(slots=True)
class _BoxFilter:
    time_s: float
    raw: Floats  # [4] centre, width and height, pixels; unfiltered
    place: Floats  # [4] filtered
    speed: Floats  # [4] pixels per second


class Steady:
    def __init__(self) -> None:
        self._filters: dict[int, _BoxFilter] = {}

    def draw(self, detections: Detections, tracker: Tracker, time_s: float) -> Detections:
        """Return the boxes to draw, best score first. Boxes without an id stay unfiltered."""
        assert detections.track_ids is not None
        ids, coasting = detections.track_ids, detections.coasting
        coasting = np.zeros(len(ids), bool) if coasting is None else coasting
        rows = tracker.followed(time_s, HOLD_S)
        rows = rows[~np.isin(tracker.ids[rows], ids)]
        missed = tracker.coasting(rows, time_s)
        drawn = replace(
            detections,
            boxes=np.concatenate([detections.boxes, missed.boxes]),
            scores=np.concatenate([detections.scores, missed.scores]),
            class_ids=np.concatenate([detections.class_ids, missed.class_ids]),
            track_ids=np.concatenate([ids, tracker.ids[rows]]),
            coasting=np.concatenate([coasting, np.ones(len(rows), bool)]),
            trails=(),
        )
        boxes = drawn.boxes.copy()
        for i, track in enumerate(drawn.track_ids.tolist()):  # type: ignore[union-attr]
            if track != NONE:
                boxes[i] = self._filter(track, boxes[i].astype(np.float64), time_s)
        alive = set(tracker.ids.tolist())
        self._filters = {track: each for track, each in self._filters.items() if track in alive}
        return replace(drawn, boxes=boxes).only(np.argsort(-drawn.scores, kind="stable"))

    def _filter(self, track: int, box: Floats, time_s: float) -> Floats:
        size = np.maximum(box[2:] - box[:2], 1.0)
        place = np.concatenate([(box[:2] + box[2:]) / 2, size])
        last = self._filters.get(track)
        if last is None:
            self._filters[track] = _BoxFilter(time_s, place, place.copy(), np.zeros(4))
            return box
        passed_s = time_s - last.time_s
        if passed_s > 0:
            speed = (place - last.raw) / passed_s
            last.speed += _weight(SPEED_CUTOFF_HZ, passed_s) * (speed - last.speed)
            cutoff = CUTOFF_HZ + PER_SPEED * np.abs(last.speed) / np.tile(size, 2)
            last.place += _weight(cutoff, passed_s) * (place - last.place)
            last.raw, last.time_s = place, time_s
        half = last.place[2:] / 2
        return np.concatenate([last.place[:2] - half, last.place[:2] + half])


def _weight(cutoff_hz: Floats | float, passed_s: float) -> Floats | float:
    """Return the weight of the new value in a first-order low pass."""
    return 1 / (1 + 1 / (2 * np.pi * cutoff_hz * passed_s))
