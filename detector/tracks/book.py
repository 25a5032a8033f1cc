"""The counts of one source or camera, frame by frame, and how its lines and zones are drawn."""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detector.core.errors import UsageError
from detector.core.run.selection import class_ids
from detector.core.types import Arrival, Detections, Frame, Outline, Scene, ZoneCount, ZoneEvent
from detector.tracks.counting import APPEARED, ENTERED, IN, OUT, Counter, Wall, outline_of
from detector.tracks.cuts import Cuts
from detector.tracks.zones_file import Places, Shape

FEW = 10  # classes of a model, all of which have rows if nobody says which to count
JUMP_S = 1.0  # of a wall clock that was set; one that is slewed gains or loses less between frames


class Book:
    """The counts of one source or camera, which any thread may close."""

    def __init__(self, camera: str, counter: Counter) -> None:
        self.camera, self.counter = camera, counter
        self._cuts = Cuts()
        self._wall_s: float | None = None  # the wall clock less the monotonic one
        self._size: tuple[float, float] = (1.0, 1.0)  # of the last frame
        self._lock = threading.Lock()
        self._last: tuple[Sequence[ZoneEvent], Sequence[ZoneCount]] | None = None

    @property
    def is_closed(self) -> bool:
        return self._last is not None

    def update(self, frame: Frame, detections: Detections, time_s: float) -> Scene:
        height, width = frame.size
        self._size = float(width), float(height)
        with self._lock:
            if self._last is not None:
                return Scene((), (), (), self)
            cut = self._cuts.here(frame)  # in every frame: what changes slowly is no cut
            if frame.coasting:  # nothing was detected: nothing is counted until it is
                return Scene(tuple(outlines(self.counter, (width, height))), (), (), self)
            ended = self.counter.end() if cut else []
            ids = detections.track_ids
            assert ids is not None, "zones run after track"
            events, counts = self.counter.update(
                *(ids, detections.class_ids, detections.boxes, time_s, (width, height)),
                self._look_at_wall(frame.arrival),
            )
            return Scene(
                tuple(outlines(self.counter, (width, height))),
                (*ended, *events),
                tuple(counts),
                self,
            )

    def _look_at_wall(self, arrival: Arrival | None) -> Wall | None:
        """Intervals of a camera are those of the wall clock, whatever clock the camera has."""
        if arrival is None:
            return None
        before, self._wall_s = self._wall_s, arrival.utc_s - arrival.arrived_ns / 1e9
        return arrival.utc_s, before is not None and abs(self._wall_s - before) > JUMP_S

    def shapes(self) -> Sequence[Shape]:
        width, height = self.counter.places.size or self._size
        return [
            replace(one, points=tuple((x / width, y / height) for x, y in one.points))
            for one in self.counter.places.shapes
        ]

    def finish(self) -> tuple[Sequence[ZoneEvent], Sequence[ZoneCount]]:
        with self._lock:
            if self._last is None:
                self._last = self.counter.finish()
            return self._last


def outlines(counter: Counter, size: tuple[int, int]) -> list[Outline]:
    """Lines with an arrow that points in, and polygons; each with its counts."""
    drawn = []
    for number, shape in enumerate(counter.places.shapes):
        points = outline_of(shape, counter.places.size, size)
        tallies = [one for (at, _), one in counter.total.items() if at == number]
        sums = Counts[str]()
        for one in tallies:
            sums.update(one.counts)
        if shape.is_line:
            strokes = [points, arrow_of(points, max(size))]
            come, gone = shape.sides
            text = f"{shape.name}: {come} {sums[IN]}, {gone} {sums[OUT]}"
            x, y = points[int(points[1, 1] < points[0, 1])]
        else:
            strokes = [np.concatenate([points, points[:1]])]
            now, came = sum(one.now for one in tallies), sums[ENTERED] + sums[APPEARED]
            text = f"{shape.name}: {now} now, {came} in all"
            x, y = points[np.argmin(points[:, 1])]
        whole = tuple(stroke.astype(np.float32) for stroke in strokes)
        drawn.append(Outline(whole, text, float(x), float(y)))
    return drawn


def arrow_of(line: Any, longest: int) -> Any:
    """From the middle of a line to its side "in". ``longest``: the picture's longer side, pixels;
    the arrow grows with it.
    """
    a, b = line
    length = float(np.hypot(*(b - a)))
    along = (b - a) / length
    side, long = np.array([-along[1], along[0]]), min(max(0.15 * length, 8.0), longest / 24)
    middle = (a + b) / 2
    tip = middle + side * long
    barbs = [tip - side * long * 0.35 + turn * along * long * 0.25 for turn in (1, -1)]
    return np.array([middle, tip, barbs[0], tip, barbs[1]])


def class_ids_of(
    places: Places, path: str, classes: Sequence[str] | None, names: Sequence[str]
) -> list[frozenset[int] | None]:
    """What each line and zone counts. Raises UsageError for a class that the model lacks, or that
    --classes leaves out."""
    seen = class_ids("--classes", classes, names)
    found: list[frozenset[int] | None] = []
    for shape in places.shapes:
        ids = class_ids(f"{path}: {shape.name}: class", shape.classes, names)
        unseen = [names[one] for one in ids or () if seen is not None and one not in seen]
        if unseen:
            raise UsageError(
                f"{path}: {shape.name}: --classes excludes {', '.join(unseen)}, which it has to "
                "count; add it there, or remove --classes"
            )
        found.append(None if ids is None else frozenset(ids))
    return found


def listed_ids(classes: Sequence[str] | None, names: Sequence[str]) -> Sequence[int]:
    """Classes with rows also before one was counted: those of --classes, or all of a few."""
    seen = class_ids("--classes", classes, names)
    return seen if seen is not None else range(len(names)) if len(names) <= FEW else ()
