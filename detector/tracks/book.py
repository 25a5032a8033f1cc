"""The counts of each source or camera, frame by frame, and its drawn lines and zones."""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detector.core.errors import UsageError
from detector.core.run.selection import class_ids
from detector.core.types import (
    Arrival,
    Detections,
    Frame,
    Outline,
    Scene,
    SourceInfo,
    ZoneCount,
    ZoneEvent,
)
from detector.tracks.counting import APPEARED, ENTERED, IN, OUT, Counter, Wall, outline_of
from detector.tracks.cuts import Cuts
from detector.tracks.zones_file import Shape, ZoneSet, ZonesFile

FEW = 10  # a model with at most this many classes has rows for all of them
JUMP_S = 1.0  # a larger jump means that the wall clock was set, not slewed


class Book:
    """The counts of one source or camera. Any thread may finish them."""

    def __init__(self, camera: str, counter: Counter) -> None:
        self.camera, self.counter = camera, counter
        self._cuts = Cuts()
        self._wall_s: float | None = None  # wall clock minus monotonic clock
        self._size: tuple[float, float] = (1.0, 1.0)  # of the last frame
        self._lock = threading.Lock()
        self._last: tuple[Sequence[ZoneEvent], Sequence[ZoneCount]] | None = None
        self.drawn: tuple[Any, ...] | None = None  # new places and classes, for the next frame

    @property
    def is_closed(self) -> bool:
        return self._last is not None

    def update(self, frame: Frame, detections: Detections, time_s: float) -> Scene:
        height, width = frame.size
        self._size = float(width), float(height)
        with self._lock:
            if self._last is not None:
                return Scene((), (), (), self)
            cut = self._cuts.here(frame)  # in every frame, so that slow changes are not cuts
            if frame.coasting:  # predicted boxes are not counted
                return Scene(tuple(outlines(self.counter, (width, height))), (), (), self)
            drawn, self.drawn = self.drawn, None
            ended, rows = self.counter.redraw(*drawn) if drawn else ([], [])
            ended += self.counter.end() if cut else []
            ids = detections.track_ids
            assert ids is not None, "zones run after track"
            events, counts = self.counter.update(
                *(ids, detections.class_ids, detections.boxes, time_s, (width, height)),
                self._look_at_wall(frame.arrival),
            )
            return Scene(
                tuple(outlines(self.counter, (width, height))),
                (*ended, *events),
                (*rows, *counts),
                self,
            )

    def _look_at_wall(self, arrival: Arrival | None) -> Wall | None:
        """Return the wall time, which a camera's intervals follow, and whether it jumped."""
        if arrival is None:
            return None
        before, self._wall_s = self._wall_s, arrival.utc_s - arrival.arrived_ns / 1e9
        return arrival.utc_s, before is not None and abs(self._wall_s - before) > JUMP_S

    def shapes(self) -> Sequence[Shape]:
        places = self.counter.places
        share = replace(places, size=places.size or self._size).share
        shapes = (places.shapes[number] for number in self.counter.active)
        return [replace(one, points=tuple(map(share, one.points))) for one in shapes]

    def finish(self) -> tuple[Sequence[ZoneEvent], Sequence[ZoneCount]]:
        with self._lock:
            if self._last is None:
                self._last = self.counter.finish()
            return self._last


class Books:
    """The counts of all cameras of a run, or of its file. ``classes``: those of --classes."""

    def __init__(
        self, file: ZonesFile, classes: Sequence[str] | None, names: Sequence[str], info: SourceInfo
    ) -> None:
        self._file, self._classes, self._names = file, classes, names
        self._all: list[Book] = []
        self._by_camera: dict[str, Book] = {}
        self._changed: set[str] = set()  # cameras whose new lines are not in use yet
        if info.kind == "live":
            _check_cameras(file)
        else:
            places = file.of_clip(info.path)
            places.check_size(file.path, info.width, info.height)
            self._open("", places, None if info.kind == "pictures" else places.start_of(info.path))

    def change(self, camera: str, file: ZonesFile) -> None:
        """Use its lines and zones from the camera's next frame on. Thread-safe."""
        self._file = file
        self._changed.add(camera)

    def of(self, camera: str) -> Book | None:
        """Return the camera's counts; None if it has no lines or zones."""
        book = self._by_camera.get(camera)
        if book is None or book.is_closed:
            book = self._open(camera, self._file.of_camera(camera))
        elif camera in self._changed:
            self._changed.remove(camera)  # first, because it may change again
            places = self._file.of_camera(camera)
            book.drawn = places, self._classes_of(places)
        return book if book.counter.places.shapes or book.drawn else None

    def _open(self, camera: str, places: ZoneSet, start_s: float | None = 0.0) -> Book:
        listed = listed_ids(self._classes, self._names)
        counter = Counter(places, self._names, self._classes_of(places), listed, start_s)
        book = Book(camera, counter)
        self._by_camera[camera] = book
        self._all.append(book)
        return book

    def _classes_of(self, places: ZoneSet) -> list[frozenset[int] | None]:
        return class_ids_of(places, self._file.path, self._classes, self._names)

    def finish(self) -> None:
        for book in self._all:
            book.finish()

    def findings(self) -> dict[str, Any]:
        from detector.tracks.zone_figures import history_of, totals_of

        books = [book for book in self._all if book.counter.places.shapes]
        return {
            "zones": [zone for one in books for zone in totals_of(one.camera, one.counter)],
            "scenes": [history_of(one.camera, one.counter) for one in books],
        }


def _check_cameras(file: ZonesFile) -> None:
    asked = (file.default, *file.cameras.values())
    if any(places.shapes and places.size is None for places in asked):
        raise UsageError(
            f"{file.path}: for cameras, give points as fractions (0 to 1), or add size: "
            "[WIDTH, HEIGHT], because the size of a camera's frames may change"
        )


def outlines(counter: Counter, size: tuple[int, int]) -> list[Outline]:
    """Return lines with an arrow towards "in", and polygons, each with its counts."""
    drawn = []
    for number in counter.active:
        shape = counter.places.shapes[number]
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
    """Return an arrow from a line to its side "in", as large as the picture (``longest`` side)
    needs."""
    a, b = line
    length = float(np.hypot(*(b - a)))
    along = (b - a) / length
    side, long = np.array([-along[1], along[0]]), min(max(0.15 * length, 8.0), longest / 24)
    middle = (a + b) / 2
    tip = middle + side * long
    barbs = [tip - side * long * 0.35 + turn * along * long * 0.25 for turn in (1, -1)]
    return np.array([middle, tip, barbs[0], tip, barbs[1]])


def class_ids_of(
    places: ZoneSet, path: str, classes: Sequence[str] | None, names: Sequence[str]
) -> list[frozenset[int] | None]:
    """Return the classes that each line and zone counts. Raises UsageError for one that the model
    lacks or --classes excludes."""
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
    """Return the classes that have rows from the start: those of --classes, or all of a few."""
    seen = class_ids("--classes", classes, names)
    return seen if seen is not None else range(len(names)) if len(names) <= FEW else ()
