"""Scenes with known crossings: objects that walk over a line, stop on it or turn back before it.

The true counts come from each object's plan, not from the program's geometry. A plan gives
distances from the line. We give each object a place along the line, and map both into the picture.
"""

from collections import Counter as Tallies
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.tracks.counting import Counter
from detector.tracks.tracker import Tracker
from detector.tracks.zones_file import Shape, ZoneSet

FPS = 25
SIZE = (1920, 1080)
NAMES = ("person", "vehicle")
FAR = 260.0  # every object begins and ends this many pixels from the line
BAND = (60.0, 180.0)  # distances of the zone's sides from the line
STRIP = (70.0, 90.0)  # the same for a thin zone
JITTER = 0.04  # share of the box's size; less than half of ``ZoneSet.margin``

Floats = NDArray[np.float64]
Row = tuple[float, float, float]  # seconds, share along the line, pixels away from it


@dataclass(frozen=True)
class Plan:
    """``turns``: distances from the line at which the object starts, turns and ends. ``truth``: how
    often it crosses the line in and out, and enters and leaves the zone."""

    name: str
    turns: tuple[float, ...]
    truth: tuple[int, int, int, int]
    stop_at: float | None = None  # distance at which it stands for 2 s, jittering
    beside: bool = False  # it passes beyond an end of the line


PLANS = (
    Plan("in", (-FAR, FAR), (1, 0, 1, 1)),
    Plan("out", (FAR, -FAR), (0, 1, 1, 1)),
    Plan("in, stops on the line", (-FAR, FAR), (1, 0, 1, 1), stop_at=0.0),
    Plan("out, stops on the line", (FAR, -FAR), (0, 1, 1, 1), stop_at=0.0),
    Plan("turns before the line", (-FAR, -30, -FAR), (0, 0, 0, 0)),
    Plan("stops on the line and turns back", (-FAR, 0, -FAR), (0, 0, 0, 0), stop_at=0.0),
    Plan("comes from the far side and turns before the line", (FAR, 30, FAR), (0, 0, 2, 2)),
    Plan("crosses in, then out", (-FAR, FAR, -FAR), (1, 1, 2, 2)),
    Plan("crosses out, then in", (FAR, -FAR, FAR), (1, 1, 2, 2)),
    Plan("passes the end of the line", (-FAR, FAR), (0, 0, 0, 0), beside=True),
    Plan("into the zone and back", (-FAR, 120, -FAR), (1, 1, 1, 1)),
)
# Without turns near the line: a fast object may turn there unseen, between two frames.
PASSING = (*PLANS[:4], *PLANS[7:10])


@dataclass
class Scene:
    places: ZoneSet
    truth: Tallies[str]
    # time, boxes, class ids, true object ids
    frames: list[tuple[float, NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]]


def make_scene(
    seed: int, *, meeting: bool = False, thin: bool = False, speed: float = 1.0
) -> Scene:
    """Return a random line, and two to eight objects, each in its own lane. Some are hidden for up
    to 0.6 s while they walk. ``meeting``: two objects share a lane and walk through each
    other, one in and one out. ``thin``: the zone is ``STRIP``. ``speed``: factor of all speeds."""
    random = np.random.default_rng(seed)
    angle, length = random.uniform(0, 2 * np.pi), random.uniform(700, 900)
    middle = np.array(SIZE) / 2 + random.uniform(-40, 40, 2)
    axis = np.array([np.cos(angle), np.sin(angle)])
    right = np.array([-axis[1], axis[0]])  # points to the right of the line, since y points down

    def point_at(share: float, away: float) -> tuple[float, float]:
        x, y = middle + axis * length * (share - 0.5) + right * away
        return float(x), float(y)

    near, far = STRIP if thin else BAND
    plans = PASSING if thin else PLANS
    band = (point_at(0, near), point_at(1, near), point_at(1, far), point_at(0, far))
    line = (point_at(0, 0), point_at(1, 0))
    shapes = (Shape("line", line, True), Shape("zone", band, False))
    count = int(random.integers(2, 9))
    lanes = random.permutation(np.linspace(0.12, 0.88, 8))[:count]
    lanes = np.repeat(lanes[: (count + 1) // 2], 2) if meeting else lanes
    paths, truth = [], Tallies[str]()
    for number, lane in enumerate(lanes.tolist()):
        plan = plans[number % 2 if meeting else int(random.integers(len(plans)))]
        share = lane if not plan.beside else float(random.choice([-0.16, 1.16]))
        height = float(random.uniform(40, 70))
        kind = int(random.integers(2))
        paths.append(_Walk(plan, share, height, kind, random, point_at, speed))
        truth.update(dict(zip(("in", "out", "entered", "left"), plan.truth, strict=True)))
    end_s = max(walk.end_s for walk in paths)
    frames = []
    for i in range(int(end_s * FPS) + 1):
        objects = [(walk.box(i / FPS), walk.kind, number) for number, walk in enumerate(paths)]
        visible = [row for row in objects if row[0] is not None]
        boxes = np.array([box for box, _, _ in visible]).reshape(-1, 4)
        kinds, true_ids = np.array([row[1:] for row in visible], np.int64).reshape(-1, 2).T
        frames.append((i / FPS, boxes, kinds, true_ids))
    return Scene(ZoneSet(shapes, every_s=2.0), truth, frames)


class _Walk:
    def __init__(self, plan, share, height, kind, random, point_at, speed) -> None:  # type: ignore[no-untyped-def]
        self.kind, self._point_at, self._share = kind, point_at, share
        self._size = np.array([height * 0.5, height])
        self._random, self._speed = random, speed * float(random.uniform(70, 130))
        time = float(random.uniform(0, 3))
        self._begin_s = time
        rows: list[Row] = [(time, share, plan.turns[0])]
        self._stop: tuple[float, float] | None = None
        for before, after in zip(plan.turns, plan.turns[1:], strict=False):
            stops = plan.stop_at is not None and min(before, after) <= plan.stop_at <= max(
                before, after
            )
            if stops and self._stop is None:
                time += abs(plan.stop_at - before) / self._speed
                rows.append((time, share, plan.stop_at))
                self._stop = (time, time + 2.0)
                time += 2.0
                rows.append((time, share, plan.stop_at))
                before = plan.stop_at
            if before != after:
                time += abs(after - before) / self._speed
                rows.append((time, share, after))
        self.end_s = time
        self._rows = np.array(rows)
        self._hidden = self._choose_hidden()

    def _choose_hidden(self) -> tuple[float, float]:
        """Choose when the object is hidden: while it walks straight, so its path is predictable."""
        if self._random.uniform() < 0.5:
            return (0.0, 0.0)
        i = int(self._random.integers(len(self._rows) - 1))
        begin, end = float(self._rows[i, 0]) + 0.6, float(self._rows[i + 1, 0]) - 0.3
        if self._rows[i, 2] == self._rows[i + 1, 2] or end - begin < 0.7:
            return (0.0, 0.0)
        at = float(self._random.uniform(begin, end - 0.6))
        return (at, at + float(self._random.uniform(0.2, 0.6)))

    def box(self, time_s: float) -> Floats | None:
        if not self._begin_s <= time_s <= self.end_s:
            return None
        if self._hidden[0] <= time_s < self._hidden[1]:
            return None
        away = float(np.interp(time_s, self._rows[:, 0], self._rows[:, 2]))
        if self._stop is not None and self._stop[0] <= time_s <= self._stop[1]:
            away += float(self._random.uniform(-JITTER, JITTER) * self._size.mean())
        x, y = self._point_at(self._share, away)  # the middle of its lower edge
        width, height = self._size
        return np.array([x - width / 2, y - height, x + width / 2, y])


@dataclass(frozen=True)
class Faults:
    """``missed``: share of boxes not found. ``noise``: standard deviation of a box's edges, as a
    share of its size. ``false``: mean number of boxes per frame that show no object."""

    missed: float = 0.0
    noise: float = 0.0
    false: float = 0.0


EXACT = Faults()


def count(
    scene: Scene, tracker: Tracker | None, faults: Faults = EXACT, seed: int = 0, stride: int = 1
) -> Counter:
    """Pass the boxes of a whole scene through a tracker and a counter. Without a tracker,
    the true ids are used, and ``faults`` must be ``EXACT``."""
    counter, random = Counter(scene.places, NAMES), np.random.default_rng(seed)
    for time_s, exact, kinds, true_ids in scene.frames[::stride]:
        detected = random.uniform(size=len(exact)) >= faults.missed
        sides = (exact[:, 2:] - exact[:, :2]).mean(axis=1, keepdims=True)
        boxes = exact + random.normal(0, 1, exact.shape) * faults.noise * sides
        boxes, classes = boxes[detected], kinds[detected]
        false = int(random.poisson(faults.false))
        corners = random.uniform(0, 1, (false, 2)) * (SIZE[0] - 40, SIZE[1] - 80)
        false_boxes = np.tile(corners, 2) + np.array([0, 0, 40, 80])
        boxes = np.concatenate([boxes, false_boxes])
        classes = np.concatenate([classes, random.integers(0, 2, false)])
        scores = np.concatenate([np.full(len(boxes) - false, 0.9), np.full(false, 0.4)])
        ids = true_ids if tracker is None else tracker.update(boxes, scores, classes, time_s)
        counter.update(ids, classes, boxes, time_s, SIZE)
    counter.finish()
    return counter


def counted(counter: Counter) -> Tallies[str]:
    totals = Tallies[str]()
    for tally in counter.total.values():
        totals.update({kind: n for kind, n in tally.counts.items() if kind in KINDS})
    return totals


KINDS: Sequence[str] = ("in", "out", "entered", "left", "appeared", "ended")
