"""Add trails to detections: the positions of tracked objects in the last seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from detector.core.types import Detections

Point = tuple[float, float, float]  # time in seconds, x, y


class Trails:
    """The centres of each track's boxes in the last ``length_s``, for one camera or video."""

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
            while points[0][0] < time_s - self._length_s:
                points.popleft()
            trails.append(np.array([(x, y) for _, x, y in points], np.float32))
        # a restarted clock makes old points later than ``time_s``
        old = [
            track
            for track, points in self._points.items()
            if abs(time_s - points[-1][0]) > self._length_s
        ]
        for track in old:
            del self._points[track]
        return replace(detections, trails=tuple(trails))
