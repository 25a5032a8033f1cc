"""Keep the counts of each source or camera, and outline its lines and zones for drawing."""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detector.core.errors import UsageError
from detector.core.run.selection import class_ids
from detector.core.types import Arrival, Detections, Frame, Outline, SourceInfo
from detector.tracks.counting import (
    APPEARED,
    ENTERED,
    IN,
    OUT,
    Counter,
    Wall,
    ZoneCount,
    ZoneEvent,
    outline_of,
)
from detector.tracks.cuts import Cuts
from detector.tracks.zones_file import Shape, ZoneSet, ZonesFile

FEW = 10  # a model with at most this many classes has rows of counts for all from the start
JUMP_S = 1.0  # a larger jump means that the wall clock was set, not adjusted gradually


@dataclass(frozen=True, slots=True)
class Scene:
    """Lines and zones at one frame (--zones). ``counts``: rows of intervals that this frame ended.
    ``book``: all counts, which later frames change; None in copies and pickles."""

    outlines: tuple[Outline, ...]
    events: tuple[ZoneEvent, ...]
    counts: tuple[ZoneCount, ...]
    book: Book | None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.outlines, self.events, self.counts, None)


class Book:
    """The counts of one source or camera. Any thread may call ``finish``."""

    def __init__(self, camera: str, counter: Counter) -> None:
        self.camera, self.counter = camera, counter
        self._cuts = Cuts()
        self._wall_s: float | None = None  # wall clock minus monotonic clock
        self._size: tuple[float, float] = (1.0, 1.0)  # the last frame's width and height
        self._lock = threading.Lock()
        self._last: Scene | None = None
        self.drawn: tuple[Any, ...] | None = None  # new zones and classes, used from the next frame

    @property
    def is_closed(self) -> bool:
        return self._last is not None

    def update(self, frame: Frame, detections: Detections, time_s: float) -> Scene:
        height, width = frame.size
        size = self._size = width, height
        with self._lock:
            if self._last is not None:
                return Scene((), (), (), self)
            cut = self._cuts.is_cut(frame)  # for every frame, since the next is compared with it
            if frame.coasting:  # predicted boxes are not counted
                return Scene(outlines(self.counter, size), (), (), self)
            drawn, self.drawn = self.drawn, None
            ended, rows = self.counter.redraw(*drawn) if drawn else ([], [])
            ended += self.counter.end() if cut else []
            ids = detections.track_ids
            assert ids is not None, "zones run after track"
            events, counts = self.counter.update(
                *(ids, detections.class_ids, detections.boxes, time_s, size),
                self._read_wall_clock(frame.arrival),
            )
            drawn_now = outlines(self.counter, size)
            return Scene(drawn_now, (*ended, *events), (*rows, *counts), self)

    def _read_wall_clock(self, arrival: Arrival | None) -> Wall | None:
        """Return a camera's wall-clock time, and whether the clock was set. None for a file."""
        if arrival is None:
            return None
        before, self._wall_s = self._wall_s, arrival.utc_s - arrival.arrived_ns / 1e9
        return arrival.utc_s, before is not None and abs(self._wall_s - before) > JUMP_S

    def shapes(self) -> Sequence[Shape]:
        zones = self.counter.zones
        share = replace(zones, size=zones.size or self._size).share
        shapes = (zones.shapes[number] for number in self.counter.active)
        return [replace(shape, points=tuple(map(share, shape.points))) for shape in shapes]

    def finish(self) -> Scene:
        """End all tracks and the last interval. Further calls return the same scene."""
        with self._lock:
            if self._last is None:
                events, counts = self.counter.finish()
                self._last = Scene((), tuple(events), tuple(counts), self)
            return self._last


class Books:
    """The counts of all cameras of a run, or of its one file. ``classes``: names of --classes."""

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
            zones = file.of_clip(info.path)
            zones.check_size(file.path, info.width, info.height)
            self._open("", zones, None if info.kind == "pictures" else zones.start_of(info.path))

    def change(self, camera: str, file: ZonesFile) -> None:
        """Use the lines and zones of ``file`` from the camera's next frame on. Thread-safe."""
        self._file = file
        self._changed.add(camera)

    def find(self, camera: str) -> Book | None:
        """Return the camera's counts; None if it has no lines or zones."""
        book = self._by_camera.get(camera)
        if book is None or book.is_closed:
            book = self._open(camera, self._file.of_camera(camera))
        elif camera in self._changed:
            self._changed.remove(camera)  # before reading: another thread may add it again
            zones = self._file.of_camera(camera)
            book.drawn = zones, self._classes_of(zones)
        return book if book.counter.zones.shapes or book.drawn else None

    def _open(self, camera: str, zones: ZoneSet, start_s: float | None = 0.0) -> Book:
        listed = listed_ids(self._classes, self._names)
        counter = Counter(zones, self._names, self._classes_of(zones), listed, start_s)
        book = Book(camera, counter)
        self._by_camera[camera] = book
        self._all.append(book)
        return book

    def _classes_of(self, zones: ZoneSet) -> list[frozenset[int] | None]:
        return class_ids_of(zones, self._file.path, self._classes, self._names)

    def finish(self) -> None:
        for book in self._all:
            book.finish()

    def findings(self) -> dict[str, Any]:
        from detector.tracks.zone_figures import history_of, totals_of

        books = [book for book in self._all if book.counter.zones.shapes]
        return {
            "zones": [zone for book in books for zone in totals_of(book.camera, book.counter)],
            "scenes": [history_of(book.camera, book.counter) for book in books],
        }


def _check_cameras(file: ZonesFile) -> None:
    if any(zones.shapes and zones.size is None for zones in (file.default, *file.cameras.values())):
        raise UsageError(
            f"{file.path}: for cameras, give points as fractions (0 to 1), or add the key "
            "size (as [WIDTH, HEIGHT]), because the size of a camera's frames may change"
        )


def outlines(counter: Counter, size: tuple[int, int]) -> tuple[Outline, ...]:
    """Return outlines of lines and zones, with counts. Lines have an arrow towards "in"."""
    drawn = []
    for number in counter.active:
        shape = counter.zones.shapes[number]
        points = outline_of(shape, counter.zones.size, size)
        tallies = [tally for (at, _), tally in counter.total.items() if at == number]
        sums = Counts[str]()
        for tally in tallies:
            sums.update(tally.counts)
        if shape.is_line:
            strokes = [points, arrow_of(points, max(size))]
            in_name, out_name = shape.sides
            text = f"{shape.name}: {in_name} {sums[IN]}, {out_name} {sums[OUT]}"
            x, y = points[int(points[1, 1] < points[0, 1])]
        else:
            strokes = [np.concatenate([points, points[:1]])]
            now, total = sum(tally.now for tally in tallies), sums[ENTERED] + sums[APPEARED]
            text = f"{shape.name}: {now} now, {total} in all"
            x, y = points[np.argmin(points[:, 1])]
        pixels = tuple(stroke.astype(np.float32) for stroke in strokes)
        drawn.append(Outline(pixels, text, float(x), float(y)))
    return tuple(drawn)


def arrow_of(line: Any, longest: int) -> Any:
    """Return the points of an arrow from a line to its side "in". ``longest``: the longest side of
    the picture, which limits the arrow."""
    a, b = line
    length = float(np.hypot(*(b - a)))
    along = (b - a) / length
    side, long = np.array([-along[1], along[0]]), min(max(0.15 * length, 8.0), longest / 24)
    middle = (a + b) / 2
    tip = middle + side * long
    barbs = [tip - side * long * 0.35 + turn * along * long * 0.25 for turn in (1, -1)]
    return np.array([middle, tip, barbs[0], tip, barbs[1]])


def class_ids_of(
    zones: ZoneSet, path: str, classes: Sequence[str] | None, names: Sequence[str]
) -> list[frozenset[int] | None]:
    """Return the classes that each line and zone counts. Raises UsageError for a class that the
    model lacks or --classes excludes."""
    selected = class_ids("--classes", classes, names)
    counted: list[frozenset[int] | None] = []
    for shape in zones.shapes:
        ids = class_ids(f"{path}: {shape.name}: class", shape.classes, names)
        excluded = [] if selected is None else [names[id] for id in ids or () if id not in selected]
        if excluded:
            raise UsageError(
                f"{path}: {shape.name}: counts {', '.join(excluded)}, which --classes "
                "excludes; change --classes or the file"
            )
        counted.append(None if ids is None else frozenset(ids))
    return counted


def listed_ids(classes: Sequence[str] | None, names: Sequence[str]) -> Sequence[int]:
    """Return the classes that have rows from the start: those of --classes. Without that
    option, all if the model has at most ``FEW``, otherwise none."""
    selected = class_ids("--classes", classes, names)
    if selected is not None:
        return selected
    return range(len(names)) if len(names) <= FEW else ()
