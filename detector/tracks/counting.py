"""Count what tracks do: crossings of lines, visits and times in zones, objects present.

Each box has a reference point: the middle of its lower edge, where an object stands on the ground,
or its centre. Boxes jitter. So a track changes sides only when its point is past the line or edge
by a margin (``ZoneSet.margin``, a share of the box's size). An object that waits on a line then
crosses it once, and an object that turns back on the line does not cross it. A track crosses a line
if it was clearly on one side, is clearly on the other side, and its path met the line itself, not
only its extension. Between two sightings, we assume a straight path. A track ends at a cut, or
after ``LOST_S`` without a box. It then counts as ended at the point where it was last seen.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.tracks.tracker import CLOCK_S, LOST_S
from detector.tracks.zones_file import BOTTOM, SIDES, Shape, ZoneSet

LEAST_MARGIN = 1.0  # pixels
MOST_OF_ZONE = 0.25  # largest margin for entering, as a share of a zone's width: zones may be small
SAMPLES = 17  # points on a path between two edges of a zone; odd, to include the middle
DAY_MS = 86_400_000
NO_CLASS = -1  # class id of a row if no class was counted yet
MOST_EMPTY = 10_000  # limit on empty intervals after a clock jumped, perhaps by years
HEAT_COLUMNS, HEAT_ROWS = 64, 36
HISTORY = 500  # intervals; if there are more, pairs are merged

IN, OUT, ENTERED, LEFT, APPEARED, ENDED = "in", "out", "entered", "left", "appeared", "ended"
OF_LINES, OF_ZONES = (IN, OUT), (ENTERED, LEFT, APPEARED, ENDED)
COUNTED_AS = {"enters": ENTERED, "leaves": LEFT, "appears": APPEARED, "ends": ENDED}

Floats = NDArray[np.float64]
Signs = NDArray[np.int8]  # sides of tracks and shapes: 1 in, -1 out, 0 unknown
Key = tuple[int, int]  # number of a shape, class id
Wall = tuple[float, bool]  # the wall clock at a frame; whether it was set since the last frame


class ZoneEvent(NamedTuple):
    """What one object did at a line or zone (--zones): it "crosses" a line; it "enters", "leaves"
    or "stays" in a zone, "appears" or "ends" there. ``x``, ``y``: the object's reference point,
    pixels. ``since_s``, ``until_s``: the visit so far, for "leaves", "ends" and "stays"."""

    time_s: float  # time of the frame that made the event certain
    zone: str  # name of the line or zone
    event: str
    direction: str  # "in" or "out" for a crossing; otherwise ""
    class_name: str
    track: int
    x: float
    y: float
    since_s: float | None = None
    until_s: float | None = None
    side: str = ""  # the line's own name for this direction, if it has one


class ZoneCount(NamedTuple):
    """What a line or zone counted of one class in an interval. Class "": nothing counted yet.
    ``mean``, ``most``: number of objects in a zone at once; None for a line. ``start_s``: the Unix
    time at 0 s of ``from_s`` and ``to_s``, if known."""

    from_s: float
    to_s: float
    zone: str
    class_name: str
    counts: Mapping[str, int]  # in, out; entered, left, appeared, ended
    mean: float | None
    most: int | None
    sides: tuple[str, str] = ("in", "out")  # the line's names for in and out
    frames: int = 0  # number of frames inspected
    start_s: float | None = None


@dataclass(slots=True)
class ShapeTally:
    """The counts of one class at one line or zone."""

    counts: dict[str, int]
    seconds: float = 0.0  # time in the zone, summed over all objects
    now: int = 0
    most: int = 0
    stays: array[float] = field(default_factory=lambda: array("d"))  # seconds of each visit


class _TrackTable:
    """Arrays with a row per track. From ``counts`` on, they also have a column per shape."""

    def __init__(self) -> None:
        self.ids = np.zeros(0, np.int64)
        self.classes = np.zeros(0, np.int64)
        self.points = np.zeros((0, 2))
        self.seen_s = np.zeros(0)
        self.counts = np.zeros((0, 0), bool)  # whether the shape counts the track's class
        self.sure = np.zeros((0, 0), np.int8)  # the last clear side: 1 in, -1 out, 0 none yet
        self.away = np.zeros((0, 0))  # pixels from the line or edge; below 0: "out", or outside
        self.through = np.zeros((0, 0), bool)  # the last change of side was at the line itself
        self.since_s = np.zeros((0, 0))  # start of the visit
        self.stayed = np.zeros((0, 0), bool)  # whether the event "stays" was returned

    def widen(self, shapes: int) -> None:
        for name in ("counts", "sure", "away", "through", "since_s", "stayed"):
            values = getattr(self, name)
            more = np.zeros((len(values), shapes - values.shape[1]), values.dtype)
            setattr(self, name, np.concatenate([values, more], axis=1))

    def keep(self, rows: NDArray[np.bool_]) -> None:
        for name, values in vars(self).items():
            setattr(self, name, values[rows])

    def add(self, count: int) -> None:
        for name, values in vars(self).items():
            more = np.zeros((count, *values.shape[1:]), values.dtype)
            setattr(self, name, np.concatenate([values, more]))

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the rows of these tracks. Each of them must have a row."""
        order = np.argsort(self.ids)  # ids are not always in order
        return order[np.searchsorted(self.ids[order], ids)]


class _Moves(NamedTuple):
    """Tracks that are seen again: rows, previous and current points, margins, time in between."""

    rows: NDArray[np.intp]
    before: Floats
    points: Floats
    margins: Floats
    passed_s: Floats


class Counter:
    """The counts of one source or camera. ``classes``: the ids that each shape counts; None: all.
    ``listed``: ids with rows from the start, in shapes that count all ids. Other ids get rows once
    any shape has counted them. ``start_s``: Unix time at 0 s of the intervals' clock, if known.
    ``active``: numbers of the current shapes; ``zones`` has earlier shapes, too."""

    def __init__(
        self,
        zones: ZoneSet,
        names: Sequence[str],
        classes: Sequence[frozenset[int] | None] | None = None,
        listed: Iterable[int] = (),
        start_s: float | None = None,
    ) -> None:
        self.zones, self._names, self.start_s = replace(zones, shapes=()), names, start_s
        self.active: list[int] = []
        self._classes: list[frozenset[int] | None] = []
        self._listed = tuple(listed)
        self._table = _TrackTable()
        self._is_zone = np.zeros(0, bool)
        self._size: tuple[int, int] | None = None
        self._outlines: list[Floats] = []
        self._widths: list[float] = []
        self.time_s: float | None = None
        self.total: dict[Key, ShapeTally] = {}
        # The current interval, on the frames' clock or the wall clock.
        self._interval: dict[Key, ShapeTally] = {}
        self._began_s = self._ends_s = 0.0
        self._now_s: float | None = None
        self._by_wall, self._frames = False, 0
        self._behind_s = 0.0  # how far the frames' clock was set back
        self.history = History(zones.every_s)
        self.heat = np.zeros((HEAT_ROWS, HEAT_COLUMNS))  # seconds that objects were in a cell
        self.redraw(zones, classes or [None] * len(zones.shapes))

    def redraw(
        self, zones: ZoneSet, classes: Sequence[frozenset[int] | None]
    ) -> tuple[list[ZoneEvent], list[ZoneCount]]:
        """Count at these lines and zones from now on. Unchanged shapes continue. Visits to removed
        zones end, and so does the current interval."""
        shapes, active, time_s = list(self.zones.shapes), list[int](), self.time_s or 0.0
        known = {self.zones.key_of(shapes[number]): number for number in self.active}
        for shape, ids in zip(zones.shapes, classes, strict=True):
            if (number := known.get(zones.key_of(shape), len(shapes))) == len(shapes):
                shapes.append(shape)
                self._classes.append(ids)
            shapes[number] = shape  # the names of its sides may differ
            active.append(number)
        table, first = self._table, len(self.zones.shapes)
        all_rows = np.arange(len(table.ids))
        removed = [number for number in self.active if number not in active]
        events = self._end_visits(np.ones(len(all_rows), bool), removed)
        table.counts[:, removed] = False
        self._count_present()
        rows = self._cut_interval()
        self.zones = replace(zones, shapes=tuple(shapes), every_s=self.zones.every_s)
        self.active = active
        self._is_zone = np.array([not shape.is_line for shape in shapes], bool)
        table.widen(len(shapes))
        if self._size is not None:
            self._set_size(self._size)
        for number in range(first, len(shapes)):
            counted = self._classes[number]
            for class_id in sorted(self._listed if counted is None else counted):
                self._get_tally(self.total, (number, class_id))
            # With infinite margins, a track's side of a line stays unknown until its next sighting.
            events += self._set_sides(number, all_rows, np.full(len(all_rows), np.inf), time_s)
        self._count_present()
        return events, rows

    def update(
        self,
        ids: NDArray[np.int64],
        class_ids: NDArray[np.int64],
        boxes: NDArray[np.floating],
        time_s: float,
        size: tuple[int, int],
        wall: Wall | None = None,
    ) -> tuple[list[ZoneEvent], list[ZoneCount]]:
        """Return the events up to the frame at ``time_s``, and the finished intervals. ``ids`` [N]:
        1 or more; -1: no track; ``boxes`` xyxy [N, 4]; ``size``: width and height of the picture.
        ``wall``: the clock of the intervals; None: the frames' clock."""
        ended: list[ZoneEvent] = []
        if self.time_s is not None and time_s < self.time_s - LOST_S:  # the clock restarts
            ended = self.end()
            self._behind_s += self.time_s - time_s
            if wall is None:
                self.start_s = None
            self.time_s = time_s
        self.time_s = time_s = time_s if self.time_s is None else max(time_s, self.time_s)
        finished = self._move_interval(time_s + self._behind_s, wall)
        self._frames += 1
        if size != self._size:
            self._set_size(size)
        events = ended + self._end_rows(time_s - self._table.seen_s > LOST_S + CLOCK_S)
        followed = ids >= 0
        ids, class_ids, boxes = ids[followed], class_ids[followed], boxes[followed]
        points, margins = _reference_points(boxes, self.zones)
        known = np.isin(ids, self._table.ids)
        if known.any():
            rows = self._table.find(ids[known])
            events += self._update_tracks(rows, points[known], margins[known], time_s)
        if not known.all():
            new = ~known
            events += self._add_tracks(ids[new], class_ids[new], points[new], margins[new], time_s)
        self._count_present()
        return events, finished

    def end(self) -> list[ZoneEvent]:
        """End all tracks, as at a cut."""
        return self._end_rows(np.ones(len(self._table.ids), bool))

    def finish(self) -> tuple[list[ZoneEvent], list[ZoneCount]]:
        """End all tracks and the current interval."""
        events = self.end()
        return events, self._cut_interval()

    def _add_tracks(
        self,
        ids: NDArray[np.int64],
        class_ids: NDArray[np.int64],
        points: Floats,
        margins: Floats,
        time_s: float,
    ) -> list[ZoneEvent]:
        """Add tracks. A track that begins inside a zone appears in it."""
        table, first = self._table, len(self._table.ids)
        table.add(len(ids))
        table.ids[first:], table.classes[first:] = ids, class_ids
        table.points[first:], table.seen_s[first:] = points, time_s
        rows = np.arange(first, len(table.ids))
        events = []
        for number in self.active:
            events += self._set_sides(number, rows, margins, time_s)
        return events

    def _set_sides(
        self, number: int, rows: NDArray[np.intp], margins: Floats, time_s: float
    ) -> list[ZoneEvent]:
        """Set the sides of tracks at a line or zone for the first time."""
        if not len(rows):
            return []
        table, counted = self._table, self._classes[number]
        points, outline = table.points[rows], self._outlines[number]
        counts = np.isin(table.classes[rows], list(counted)) if counted is not None else True
        table.counts[rows, number] = counts
        if self.zones.shapes[number].is_line:
            table.away[rows, number] = away = _distance_from_line(points, outline)
            table.sure[rows, number] = np.where(np.abs(away) > margins, np.sign(away), 0)
            return []
        table.away[rows, number] = away = _distance_from_outline(points, outline)
        table.sure[rows, number] = np.where(away > 0, 1, -1)
        table.since_s[rows, number] = time_s
        inside = rows[(away > 0) & counts]
        return [self._count(row, number, "appears", time_s) for row in inside.tolist()]

    def _update_tracks(
        self, rows: NDArray[np.intp], points: Floats, margins: Floats, time_s: float
    ) -> list[ZoneEvent]:
        table = self._table
        passed_s = time_s - table.seen_s[rows]
        moves = _Moves(rows, table.points[rows].copy(), points, margins, passed_s)
        self._add_heat(points, passed_s)
        table.points[rows], table.seen_s[rows] = points, time_s
        events = []
        for number in self.active:
            if self.zones.shapes[number].is_line:
                events += self._find_crossings(number, moves, time_s)
            else:
                self._add_time_in_zone(number, rows, passed_s)
                events += self._find_visits(number, moves, time_s)
        return events

    def _find_crossings(self, number: int, moves: _Moves, time_s: float) -> list[ZoneEvent]:
        rows, before, points, margins, _ = moves
        table, (a, b) = self._table, self._outlines[number]
        was, now = table.away[rows, number], _distance_from_line(points, self._outlines[number])
        changed = (was >= 0) != (now >= 0)
        if changed.any():
            share = was[changed] / (was[changed] - now[changed])
            met = before[changed] + share[:, None] * (points[changed] - before[changed])
            along = (met - a) @ (b - a) / ((b - a) @ (b - a))
            table.through[rows[changed], number] = (along >= 0) & (along <= 1)
        table.away[rows, number] = now
        side = np.where(np.abs(now) > margins, np.sign(now), 0).astype(np.int8)
        old_side = table.sure[rows, number]
        turned = (side != 0) & (old_side != 0) & (side != old_side)
        crossed = turned & table.through[rows, number] & table.counts[rows, number]
        table.sure[rows, number] = np.where(side != 0, side, old_side)
        return [
            self._count(int(rows[i]), number, "crosses", time_s, IN if side[i] > 0 else OUT)
            for i in np.flatnonzero(crossed).tolist()
        ]

    def _find_visits(self, number: int, moves: _Moves, time_s: float) -> list[ZoneEvent]:
        """Find visits. The straight path from the last point may lead in and out several times."""
        rows, before, points, margins, passed_s = moves
        table, outline = self._table, self._outlines[number]
        was, now = table.away[rows, number], _distance_from_outline(points, outline)
        table.away[rows, number] = now
        least = np.minimum(margins, MOST_OF_ZONE * self._widths[number])
        side = (now > least).astype(np.int8) - (now < -margins)
        length, to_edge = np.linalg.norm(points - before, axis=1), np.abs(was) + np.abs(now)
        # Paths shorter than this can neither meet an edge, nor leave the margin and return.
        between = (length >= to_edge) | ((side == 0) & (length + to_edge > 2 * least))
        turned = (side != 0) & (side != table.sure[rows, number])
        events = []
        for i in np.flatnonzero((turned | between) & table.counts[rows, number]).tolist():
            row, entered = int(rows[i]), False
            path = _sides(before[i], points[i], outline, least[i], margins[i]) if between[i] else ()
            for now_in, share in (*path, (int(side[i]), 0.0)):
                if now_in in (0, table.sure[row, number]):
                    continue
                if now_in > 0:
                    table.since_s[row, number], table.stayed[row, number] = time_s, False
                    inside_s, entered = share * float(passed_s[i]), True
                elif entered:  # entered and left between two sightings
                    table.since_s[row, number] -= inside_s
                    self._add_seconds(number, int(table.classes[row]), inside_s)
                kind = "enters" if now_in > 0 else "leaves"
                events.append(self._count(row, number, kind, time_s))
                table.sure[row, number] = now_in
        return events + self._find_stays(number, rows, time_s)

    def _find_stays(self, number: int, rows: NDArray[np.intp], time_s: float) -> list[ZoneEvent]:
        table, stays_s = self._table, self.zones.shapes[number].stays_s
        if stays_s is None:
            return []
        inside = (table.sure[rows, number] > 0) & table.counts[rows, number]
        late = time_s - table.since_s[rows, number] >= stays_s - CLOCK_S
        staying = rows[inside & late & ~table.stayed[rows, number]]
        table.stayed[staying, number] = True
        return [self._count(row, number, "stays", time_s) for row in staying.tolist()]

    def _end_rows(self, gone: NDArray[np.bool_]) -> list[ZoneEvent]:
        if not gone.any():
            return []
        events = self._end_visits(gone, self.active)
        self._table.keep(~gone)
        self._count_present()
        return events

    def _end_visits(self, gone: NDArray[np.bool_], numbers: Sequence[int]) -> list[ZoneEvent]:
        table, time_s, events = self._table, self.time_s or 0.0, list[ZoneEvent]()
        for number in numbers:
            if not self.zones.shapes[number].is_line:
                inside = gone & (table.sure[:, number] > 0) & table.counts[:, number]
                rows = np.flatnonzero(inside).tolist()
                events += [self._count(row, number, "ends", time_s) for row in rows]
        return events

    def _count(
        self, row: int, number: int, event: str, time_s: float, direction: str = ""
    ) -> ZoneEvent:
        """Count an event and return it. Call this before the table gets the track's new side."""
        table = self._table
        class_id = int(table.classes[row])
        since_s = until_s = None
        if event in ("leaves", "ends", "stays"):
            since_s, until_s = float(table.since_s[row, number]), float(table.seen_s[row])
        if event != "stays":
            kind = direction or COUNTED_AS[event]
            for tallies in (self.total, self._interval):
                tally = self._get_tally(tallies, (number, class_id))
                tally.counts[kind] += 1
                if event in ("leaves", "ends") and since_s is not None and until_s is not None:
                    tally.stays.append(until_s - since_s)
        x, y = table.points[row].tolist()
        return ZoneEvent(
            *(time_s, self.zones.shapes[number].name, event, direction, self.name_of(class_id)),
            *(int(table.ids[row]), x, y, since_s, until_s),
            side=_name_side(self.zones.shapes[number], direction),
        )

    def _get_tally(self, tallies: dict[Key, ShapeTally], key: Key) -> ShapeTally:
        if key not in tallies:
            kinds = OF_LINES if self.zones.shapes[key[0]].is_line else OF_ZONES
            tallies[key] = ShapeTally(dict.fromkeys(kinds, 0))
        return tallies[key]

    def _add_time_in_zone(self, number: int, rows: NDArray[np.intp], passed: Floats) -> None:
        table = self._table
        inside = (table.sure[rows, number] > 0) & table.counts[rows, number]
        for class_id in np.unique(table.classes[rows[inside]]).tolist():
            seconds = float(passed[inside & (table.classes[rows] == class_id)].sum())
            self._add_seconds(number, class_id, seconds)

    def _add_seconds(self, number: int, class_id: int, seconds: float) -> None:
        for tallies in (self.total, self._interval):
            self._get_tally(tallies, (number, class_id)).seconds += seconds

    def _count_present(self) -> None:
        """Update how many objects are in each zone, including objects unseen for a short time."""
        table = self._table
        present: dict[Key, int] = defaultdict(int)
        for row, number in np.argwhere((table.sure > 0) & table.counts & self._is_zone).tolist():
            present[number, int(table.classes[row])] += 1
        for tallies in (self.total, self._interval):
            for key in {*present, *tallies}:
                tally = self._get_tally(tallies, key)
                tally.now = present.get(key, 0)
                tally.most = max(tally.most, tally.now)

    def _move_interval(self, frame_s: float, wall: Wall | None) -> list[ZoneCount]:
        """Return finished intervals. On the wall clock, an interval begins when counting begins,
        when the clock was set, and at multiples of its length after midnight. On the frames' clock,
        all intervals begin at multiples of the length."""
        (now_s, was_set), every = wall or (frame_s, False), self.zones.every_s
        if self._now_s is not None and not was_set:
            self._now_s = max(now_s, self._now_s)
            return self._close_intervals(self._now_s)
        finished = self._cut_interval()
        self._by_wall = wall is not None
        self._began_s = now_s if self._by_wall else math.floor(now_s / every) * every
        self._ends_s = self._find_end(self._began_s)
        if self._now_s is None:
            self.history.began_s = self._ends_s - every
        self._now_s = now_s
        return finished

    def _cut_interval(self) -> list[ZoneCount]:
        if self._now_s is None or not (self._interval or self._now_s > self._began_s):
            return []
        return self._close_interval(self._now_s)

    def _close_intervals(self, now_s: float) -> list[ZoneCount]:
        every, finished = self.zones.every_s, list[ZoneCount]()
        for _ in range(MOST_EMPTY):
            if now_s < self._ends_s:
                return finished
            finished += self._close_interval(self._ends_s)
            self._ends_s = self._find_end(self._ends_s)
        self._began_s += math.floor((now_s - self._began_s) / every) * every
        self._ends_s = self._find_end(self._began_s)
        return finished

    def _find_end(self, at_s: float) -> float:
        every = self.zones.every_s
        return _find_next_mark(at_s, every) if self._by_wall else at_s + every

    def _close_interval(self, to_s: float) -> list[ZoneCount]:
        """Return a row for each line or zone and each known class that it counts."""
        from_s, interval = self._began_s, self._interval
        counted = {class_id for _, class_id in self.total}
        for number in self.active:
            for class_id in counted if self._classes[number] is None else ():
                self._get_tally(self.total, (number, class_id))
        for key, tally in self.total.items():
            if key not in interval and key[0] in self.active:
                self._get_tally(interval, key).most = tally.now
        for number in set(self.active) - {number for number, _ in interval}:
            self._get_tally(interval, (number, NO_CLASS))
        rows = [self._make_row(from_s, to_s, key, interval[key]) for key in sorted(interval)]
        self.history.add(from_s, to_s, interval)
        self._began_s, self._interval, self._frames = to_s, {}, 0
        for key, tally in self.total.items():
            if tally.now:  # present objects are counted in the next interval, too
                self._get_tally(self._interval, key).most = tally.now
        return rows

    def name_of(self, class_id: int) -> str:
        known = 0 <= class_id < len(self._names)
        return self._names[class_id] if known else "" if class_id == NO_CLASS else str(class_id)

    def _make_row(self, from_s: float, to_s: float, key: Key, tally: ShapeTally) -> ZoneCount:
        shape = self.zones.shapes[key[0]]
        mean = None if shape.is_line else tally.seconds / max(to_s - from_s, CLOCK_S)
        most = None if shape.is_line else tally.most
        return ZoneCount(
            *(from_s, to_s, shape.name, self.name_of(key[1]), dict(tally.counts)),
            *(mean, most, shape.sides, self._frames, self.start_s),
        )

    def _add_heat(self, points: Floats, passed: Floats) -> None:
        assert self._size is not None
        cells = (points / self._size * (HEAT_COLUMNS, HEAT_ROWS)).astype(np.intp)
        cells = cells.clip(0, (HEAT_COLUMNS - 1, HEAT_ROWS - 1))
        np.add.at(self.heat, (cells[:, 1], cells[:, 0]), passed)

    def _set_size(self, size: tuple[int, int]) -> None:
        self._size = size
        self._outlines = [outline_of(shape, self.zones.size, size) for shape in self.zones.shapes]
        self._widths = [_estimate_width(outline) for outline in self._outlines]


def _find_next_mark(at_s: float, every_s: float) -> float:
    """Return the next time after ``at_s`` at which the local clock shows midnight, or a multiple of
    ``every_s`` after midnight."""
    at, every = round(at_s * 1000), round(every_s * 1000)
    past = _local_ms(at) % DAY_MS
    end = at + min(every - past % every, DAY_MS - past)
    if _local_ms(end) % DAY_MS % every:  # daylight saving time changes in between
        shifted = end - (_local_ms(end) - end) + (_local_ms(at) - at)
        if shifted > at and not _local_ms(shifted) % DAY_MS % every:
            end = shifted
    return end / 1000


def _local_ms(unix_ms: int) -> int:
    return unix_ms + time.localtime(unix_ms / 1000).tm_gmtoff * 1000


class History:
    """The counts of past intervals, at most ``HISTORY``; if there are more, pairs are merged."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.began_s = 0.0
        self.slots: list[dict[Key, ShapeTally]] = []

    def add(self, from_s: float, to_s: float, interval: dict[Key, ShapeTally]) -> None:
        middle = (from_s + to_s) / 2 - self.began_s
        while middle >= HISTORY * self.every_s:
            self.every_s *= 2
            pairs = [self.slots[i : i + 2] for i in range(0, len(self.slots), 2)]
            self.slots = [_merge(pair) for pair in pairs]
        slot = max(0, int(middle / self.every_s))
        while len(self.slots) <= slot:
            self.slots.append({})
        self.slots[slot] = _merge([self.slots[slot], interval])


def _merge(several: Sequence[dict[Key, ShapeTally]]) -> dict[Key, ShapeTally]:
    joined: dict[Key, ShapeTally] = {}
    for tallies in several:
        for key, tally in tallies.items():
            if not (tally.seconds or any(tally.counts.values())):
                continue
            into = joined.setdefault(key, ShapeTally(dict.fromkeys(tally.counts, 0)))
            for kind, count in tally.counts.items():
                into.counts[kind] += count
            into.seconds += tally.seconds
            into.most = max(into.most, tally.most)
    return joined


# Geometry. Points [N, 2] and outlines [n, 2] in pixels, y downwards.


def outline_of(shape: Shape, of: tuple[float, float] | None, size: tuple[int, int]) -> Floats:
    """Return the points of a line or zone in a picture of ``size``. ``of``: a ``ZoneSet.size``."""
    scale = (1.0, 1.0) if of is None else (size[0] / of[0], size[1] / of[1])
    return np.array(shape.points, np.float64) * scale


def _name_side(shape: Shape, direction: str) -> str:
    """Return the name of a direction; "" if the file of lines names neither direction."""
    return shape.sides[direction == OUT] if direction and shape.sides != SIDES else ""


def _reference_points(boxes: NDArray[np.floating], zones: ZoneSet) -> tuple[Floats, Floats]:
    """Return the counted point of each box, and its margin."""
    boxes = boxes.astype(np.float64)
    x, sides = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 2:] - boxes[:, :2]).mean(axis=1)
    y = boxes[:, 3] if zones.point == BOTTOM else (boxes[:, 1] + boxes[:, 3]) / 2
    return np.stack([x, y], axis=1), np.maximum(LEAST_MARGIN, zones.margin * sides)


def _distance_from_line(points: Floats, line: Floats) -> Floats:
    """Return the distance of points from the infinite line, positive on its right-hand side."""
    a, b = line
    along = (b - a) / np.hypot(*(b - a))
    away: Floats = (points - a) @ np.array([-along[1], along[0]])
    return away


def _distance_from_outline(points: Floats, outline: Floats) -> Floats:
    """Return the distance of each point from the nearest edge, positive inside (ray casting)."""
    x, y = points[:, :1], points[:, 1:]
    after = np.roll(outline, -1, axis=0)
    edges = after - outline
    to = points[:, None] - outline
    share = ((to * edges).sum(axis=2) / (edges * edges).sum(axis=1)).clip(0, 1)
    nearest: Floats = np.linalg.norm(to - share[..., None] * edges, axis=2).min(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = x < edges[:, 0] * (y - outline[:, 1]) / edges[:, 1] + outline[:, 0]
    spans = (outline[:, 1] > y) != (after[:, 1] > y)
    return np.where((spans & left).sum(axis=1) % 2 == 1, nearest, -nearest)


def _sides(
    a: Floats, b: Floats, outline: Floats, least: float, margin: float
) -> Iterator[tuple[int, float]]:
    """Yield (side, share of the path) for each stretch of the path that is clearly on one side."""
    path, edges, to = b - a, np.roll(outline, -1, axis=0) - outline, outline - a
    with np.errstate(divide="ignore", invalid="ignore"):
        across = path[0] * edges[:, 1] - path[1] * edges[:, 0]
        at = (to[:, 0] * edges[:, 1] - to[:, 1] * edges[:, 0]) / across
        along = (to[:, 0] * path[1] - to[:, 1] * path[0]) / across
    met = np.sort(at[(at > 0) & (at < 1) & (along >= 0) & (along <= 1)]).tolist()
    for begin, end in pairwise((0.0, *met, 1.0)):
        away = _distance_from_outline(a + np.linspace(begin, end, SAMPLES)[:, None] * path, outline)
        if away.max() > least:
            yield 1, end - begin
        elif away.min() < -margin:
            yield -1, end - begin


def _estimate_width(outline: Floats) -> float:
    """Return a zone's approximate width: for a rectangle, 0.5 to 1 times its shorter side."""
    if len(outline) == 2:
        return 0.0
    after = np.roll(outline, -1, axis=0)
    area = abs(np.sum(outline[:, 0] * after[:, 1] - after[:, 0] * outline[:, 1])) / 2
    return float(2 * area / np.linalg.norm(after - outline, axis=1).sum())
