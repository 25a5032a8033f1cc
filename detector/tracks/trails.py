"""Trails: where tracked objects were in the last seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from detector.core.types import Detections

Point = tuple[float, float, float]  # when it was there, x, y


class Trails:
    """The middles of each track's boxes in the last ``length_s``, for one camera or video."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._points: dict[int, deque[Point]] = {}

    def draw(self, detections: Detections, time_s: float) -> Detections:
        """Add a trail to each detection; it ends at the object."""
        middles = (detections.boxes[:, :2] + detections.boxes[:, 2:]) / 2
        trails = []
        for track, (x, y) in zip(detections.track_list(), middles.tolist(), strict=True):
            points = deque[Point]() if track is None else self._points.setdefault(track, deque())
            points.append((time_s, x, y))
            self._shorten(points, time_s)
            trails.append(_line(points))
        for gone in [one for one, points in self._points.items() if not self._new(points, time_s)]:
            del self._points[gone]
        return replace(detections, trails=tuple(trails))

    def _shorten(self, points: deque[Point], time_s: float) -> None:
        while points[0][0] < time_s - self._length_s:
            points.popleft()

    def _new(self, points: deque[Point], time_s: float) -> bool:
        return abs(time_s - points[-1][0]) <= self._length_s  # the clock may restart


def _line(points: deque[Point]) -> NDArray[np.float32]:
    return np.array([(x, y) for _, x, y in points], np.float32)
