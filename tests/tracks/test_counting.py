"""Counts at lines and in zones, in scenes with known crossings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from detector.tracks.counting import (
    HISTORY,
    LOST_S,
    Counter,
    History,
    ShapeTally,
    ZoneCount,
    ZoneEvent,
)
from detector.tracks.sinks.counts import local_text
from detector.tracks.trackers import find
from detector.tracks.zone_figures import history_of, totals_of
from detector.tracks.zones_file import Shape, ZoneSet
from tests.tracks.crossings import KINDS, NAMES, SIZE, Faults, count, counted, make_scene

LINE = Shape("door", ((100, 300), (500, 300)), True)  # "in" is downwards
YARD = Shape("yard", ((100, 300), (500, 300), (500, 600), (100, 600)), False, stays_s=2)
Walk = Sequence[tuple[float, float, float] | None]  # seconds, x, y of the lower edge's middle


def walk(
    path: Walk,
    *shapes: Shape,
    every_s: float = 60.0,
    point: str = "bottom",
    listed: Sequence[int] = (),
    shares: bool = False,
    classes: Sequence[frozenset[int]] | None = None,
) -> tuple[Counter, list[ZoneEvent], list[ZoneCount]]:
    """Count one person on a path. ``shares``: the shapes have coordinates from 0 to 1."""
    size = (1.0, 1.0) if shares else None
    zones = ZoneSet(shapes or (LINE, YARD), size, point, every_s)
    counter = Counter(zones, NAMES, classes, listed=listed)
    events: list[ZoneEvent] = []
    rows: list[ZoneCount] = []
    for at in path:
        t, x, y = at or (0.0, 0.0, 0.0)
        boxes = np.array([[x - 10, y - 40, x + 10, y]] if at else []).reshape(-1, 4)
        ids = np.ones(len(boxes), np.int64)
        time_s = t if at else (counter.time_s or 0.0) + 0.1
        result = counter.update(ids, np.zeros(len(boxes), np.int64), boxes, time_s, SIZE)
        events += result[0]
        rows += result[1]
    result = counter.finish()
    return counter, [*events, *result[0]], [*rows, *result[1]]


def names(events: Sequence[ZoneEvent]) -> list[str]:
    return [
        f"{event.zone} {event.event}{event.direction and ' ' + event.direction}" for event in events
    ]


def straight(
    y1: float, y2: float, seconds: float = 4.0, x: float = 300
) -> list[tuple[float, float, float]]:
    steps = round(seconds * 10)
    return [(i / 10, x, y1 + (y2 - y1) * i / steps) for i in range(steps + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_exact_boxes_give_exact_counts(seed: int) -> None:
    scene = make_scene(seed)
    totals = counted(count(scene, find("bytetrack")(0.25)))
    assert {kind: totals[kind] for kind in KINDS} == {kind: scene.truth[kind] for kind in KINDS}


def test_scenes_have_crossings_of_every_kind() -> None:
    truths = [make_scene(seed).truth for seed in range(12)]
    assert all(sum(truth[kind] for truth in truths) >= 10 for kind in KINDS[:4])


def test_crossing_is_reported_with_direction_place_and_side() -> None:
    _, events, _ = walk(straight(200, 400), LINE)
    assert names(events) == ["door crosses in"]
    assert (events[0].track, events[0].class_name, events[0].x) == (1, "person", 300)
    assert 2.0 < events[0].time_s < 2.2, "reported when the box has clearly passed the line"
    assert names(walk(straight(400, 200), LINE)[1]) == ["door crosses out"]
    assert names(walk(straight(200, 400, x=520), LINE)[1]) == [], "past the line's end"
    # Events name the side only if the names of the line's sides are not "in" and "out".
    for sides, side in ((("in", "away"), "in"), (("in", "out"), "")):
        assert walk(straight(200, 400), replace(LINE, sides=sides))[1][0].side == side


def test_box_that_jitters_on_an_edge_crosses_once() -> None:
    jittering = [(2 + i / 10, 300.0, 300 + 3 * (-1) ** i) for i in range(40)]
    before, after = straight(200, 300, 2), [(6 + t, x, y) for t, x, y in straight(300, 400, 2)]
    assert names(walk([*before, *jittering, *after], LINE)[1]) == ["door crosses in"]
    assert names(walk([*before, *jittering, *after], YARD)[1]) == ["yard enters", "yard ends"]
    back = [(6 + t, x, y) for t, x, y in straight(300, 200, 2)]
    assert names(walk([*before, *jittering, *back], LINE)[1]) == []


def test_point_centre_uses_the_middle_of_the_box() -> None:
    path = straight(200, 312)  # its lower edge is past the line, its centre is not
    assert names(walk(path, LINE)[1]) == ["door crosses in"]
    assert names(walk(path, LINE, point="centre")[1]) == []


def test_track_lost_for_too_long_ends() -> None:
    path = [*straight(350, 400, 1), *[None] * 15]
    _, events, _ = walk(path, YARD)
    assert names(events) == ["yard appears", "yard ends"]
    assert (events[1].since_s, events[1].until_s) == (0.0, 1.0)
    assert events[1].time_s == pytest.approx(2.1), "reported when the track is given up"


def test_a_cut_ends_all_tracks() -> None:
    counter = Counter(ZoneSet((YARD,)), NAMES)
    box, ids = np.array([[290.0, 360, 310, 400]]), np.array([1])
    counter.update(ids, np.zeros(1, np.int64), box, 0.0, SIZE)
    assert names(counter.end()) == ["yard ends"]
    events, _ = counter.update(ids + 1, np.zeros(1, np.int64), box, 0.1, SIZE)
    assert names(events) == ["yard appears"]
    assert next(iter(counter.total.values())).most == 1, "the tracks were not in the yard at once"


@pytest.mark.parametrize("error_s", [-1e-9, 0.0])
def test_stay_is_reported_in_the_frame_that_completes_it(error_s: float) -> None:
    """Rounding may bring two frames slightly closer in time."""
    times = (1.0, 1.5, 2.0, 2.5, 3.0 + error_s)
    _, events, _ = walk([(0.5, 300.0, 200.0), *((t, 300.0, 400.0) for t in times)], YARD)
    assert names(events)[:2] == ["yard enters", "yard stays"]


def test_visits_stays_and_seconds_add_up() -> None:
    path = [*straight(200, 400, 2), *[(2 + i / 10, 300.0, 400.0) for i in range(40)]]
    path += [(6 + t, x, y) for t, x, y in straight(400, 200, 2)]
    counter, events, rows = walk(path, YARD, every_s=3.0)
    assert names(events) == ["yard enters", "yard stays", "yard leaves"]
    entered, stays, left = events
    assert stays.time_s - entered.time_s == pytest.approx(2.0, abs=0.11)
    assert (left.since_s, left.until_s) == (entered.time_s, left.time_s)
    (tally,) = counter.total.values()
    assert tally.counts == {"entered": 1, "left": 1, "appeared": 0, "ended": 0}
    assert (tally.now, tally.most, len(tally.stays)) == (0, 1, 1)
    assert tally.seconds == pytest.approx(tally.stays[0])
    spent = sum((row.to_s - row.from_s) * (row.mean or 0) for row in rows)
    assert spent == pytest.approx(tally.stays[0]), "no second is lost between intervals"
    assert [(row.from_s, row.to_s) for row in rows] == [(0, 3), (3, 6), (6, 8)]
    assert sum(row.counts["entered"] for row in rows) == 1


@pytest.mark.slow
def test_entries_equal_exits() -> None:
    """entered + appeared = left + ended, also with wrong boxes."""
    for seed in range(3):
        scene = make_scene(seed)
        counter = count(scene, find("sort")(0.25), Faults(0.3, 0.1, 2.0), seed)
        for tally in counter.total.values():
            if "entered" in tally.counts:
                counts = tally.counts
                assert counts["entered"] + counts["appeared"] == counts["left"] + counts["ended"]
                assert tally.now == 0


def test_shape_counts_only_its_own_classes() -> None:
    counter, _, _ = walk(straight(200, 400), classes=[frozenset([1]), frozenset([0])])
    assert counter.total[0, 1].counts == {"in": 0, "out": 0}, "listed, but not seen"
    assert (0, 0) not in counter.total
    assert counter.total[1, 0].counts["entered"] == 1


def test_coordinates_as_shares_follow_the_picture_size() -> None:
    line = Shape("door", ((0, 300 / SIZE[1]), (1, 300 / SIZE[1])), True)
    assert names(walk(straight(200, 400), line, shares=True)[1]) == ["door crosses in"]


def test_setting_the_clock_back_ends_tracks_but_not_the_counting() -> None:
    path = [*straight(350, 400, 1), *((at, 300.0, 400.0) for at in (1000.0, 1.0, 1.5))]
    _, events, rows = walk(path, YARD, every_s=10.0)
    assert names(events).count("yard ends") == 3
    assert all(row.to_s > row.from_s for row in rows)


def test_track_survives_a_small_step_back_of_the_clock() -> None:
    path = [*straight(350, 400, 5), (5.0 - LOST_S, 300.0, 400.0)]
    assert names(walk(path, YARD)[1]).count("yard ends") == 1


def test_long_history_is_shortened_by_merging_slots() -> None:
    history = History(1.0)
    for i in range(5 * HISTORY):
        history.add(i, i + 1, {(0, 0): ShapeTally({"in": 1}, now=0)})
    assert len(history.slots) <= HISTORY
    assert sum(slot[0, 0].counts["in"] for slot in history.slots) == 5 * HISTORY
    assert history.every_s == 8.0


OUTER, INNER = ((300, 100), (300, 300), (100, 300), (100, 100)), ((120, 100), (120, 280))
U = Shape("u", (*OUTER, *INNER, (280, 280), (280, 100)), False)  # strokes of 20 pixels
STRIP = Shape("kerb", ((100, 300), (500, 300), (500, 304), (100, 304)), False)
STOPS_ON_EDGE = [*straight(200, 297, 2), *[(2 + i / 10, 300, 297 + 6 * (i % 2)) for i in range(40)]]


@pytest.mark.parametrize(
    ("path", "zone", "events"),
    [
        ([(0.0, 300, 200), (0.1, 300, 700)], YARD, "enters leaves"),
        ([(0.0, 300, 296), (0.1, 300, 308), (0.2, 300, 400)], STRIP, "enters leaves"),
        ([(0.0, 300, 200), None, None, (0.9, 300, 700)], YARD, "enters leaves"),
        ([(0.0, 300, 200), None, None, (0.9, 300, 700)], LINE, "crosses"),
        ([(0.0, 90, 340), (0.1, 140, 290)], YARD, "enters leaves"),  # cuts a corner, 7 pixels deep
        ([(0.0, 99, 303), (0.1, 103, 299)], YARD, ""),  # touches a corner
        ([(0.0, 50, 200), (0.1, 350, 200)], U, "enters leaves enters leaves"),
        ([(0.0, 110, 200), (0.1, 290, 200)], U, "appears leaves enters ends"),
        ([(0.0, 110, 200), (0.1, 350, 200)], U, "appears leaves enters leaves"),
        ([(0.0, 50, 290), (0.1, 102, 290), (0.2, 298, 290), (0.3, 350, 290)], U, "enters leaves"),
        (STOPS_ON_EDGE, STRIP, "enters ends"),
        ([(0.0, 300, 200), (0.1, 300, 301.2)], STRIP, "enters ends"),  # 1.2 deep, margin: 1
        ([(0.0, 300, 200), (0.1, 300, 300.5)], STRIP, ""),
        ([(0.0, 300, 280), (0.1, 300, 320)], LINE, "crosses"),  # one clear sighting is enough
        ([(0.0, 300, 297), (0.1, 300, 320)], LINE, ""),  # first seen on the line
        ([(0.0, 520, 280), (0.1, 520, 320)], LINE, ""),  # passes the end of the line
        ([(0.0, 300, 320), (0.1, 300, 330)], LINE, ""),  # first seen past the line
    ],
)
def test_path_between_two_sightings_crosses_lines_and_zones(
    path: Walk, zone: Shape, events: str
) -> None:
    assert [name.split()[1] for name in names(walk(path, zone)[1])] == events.split()


@pytest.mark.parametrize("steps", [4, 12, 24, 60, 100, 170])  # pixels a frame
def test_thin_zone_and_line_in_its_middle_count_the_same(steps: int) -> None:
    line = Shape("l", ((100, 302), (500, 302)), True)
    for first in range(150, 150 + steps, max(1, steps // 5)):
        path = [(i / 25, 300.0, y) for i, y in enumerate(range(first, 650, steps))]
        counter, _, _ = walk(path, line, STRIP)
        assert counter.total[0, 0].counts["in"] == counter.total[1, 0].counts["entered"] == 1
        assert counter.total[1, 0].counts["left"] == 1


def test_time_in_a_zone_between_two_sightings_is_interpolated() -> None:
    counter, events, _ = walk([(0.0, 300, 200), (0.5, 300, 700)], YARD)
    (tally,) = counter.total.values()
    assert tally.seconds == tally.stays[0] == pytest.approx(0.3), "300 of the 500 pixels are inside"
    assert (events[1].since_s, events[1].until_s) == (pytest.approx(0.2), 0.5)


def test_object_that_leaves_when_an_interval_begins_is_counted() -> None:
    path = [*[(i / 10, 300.0, 400.0) for i in range(30)], (3.0, 300.0, 100.0), (3.5, 300.0, 100.0)]
    _, _, rows = walk(path, YARD, every_s=3.0)
    assert [row.most for row in rows] == [1, 1]


@pytest.mark.parametrize("listed", [(), (1,), (0, 1)])
def test_each_interval_has_a_row_for_each_known_class(listed: Sequence[int]) -> None:
    """The scene is empty for 4.5 s; then a person crosses the door, but not the gate."""
    before = [NAMES[class_id] for class_id in listed] or [""]
    path = [*[None] * 45, *((5 + t, x, y) for t, x, y in straight(200, 400, 3.9))]
    gate = Shape("gate", ((700, 300), (800, 300)), True)
    _, _, rows = walk(path, LINE, gate, every_s=3.0, listed=listed)
    figures = [(row.from_s, row.zone, row.class_name, row.counts["in"]) for row in rows]
    after = sorted({"person", *before} - {""})
    assert figures[: 2 * len(before)] == [
        (0, shape_name, row, 0) for shape_name in ("door", "gate") for row in before
    ]
    assert figures[-2 * len(after) :] == [
        (6, shape_name, row, int((shape_name, row) == ("door", "person")))
        for shape_name in ("door", "gate")
        for row in after
    ]
    assert sum({row.from_s: row.frames for row in rows}.values()) == len(path)


CHANGES = {  # time zone, first frame (UTC), hours per interval, local times when intervals begin
    "an hour occurs twice": ("Europe/Berlin", "2026-10-25T00:00", 1, "02+02 02+01 03+01 04+01"),
    "an hour is skipped": ("Europe/Berlin", "2026-03-29T00:00", 1, "01+01 03+02 04+02 05+02"),
    "a day of 25 hours": ("Europe/Berlin", "2026-10-24T22:00", 6, "00+02 06+01 12+01 18+01 00+01"),
    "a day of 23 hours": ("Europe/Berlin", "2026-03-28T23:00", 6, "00+01 06+02 12+02 18+02 00+02"),
    "the hour at 2 is skipped": ("Europe/Berlin", "2026-03-28T23:00", 2, "00+01 03+02 04+02 06+02"),
    "offset of 5.5 hours": ("Asia/Kolkata", "2026-03-28T18:30", 12, "00+05:30 12+05:30 00+05:30"),
    "midnight is skipped": ("Asia/Beirut", "2026-03-27T22:00", 24, "00+02 01+03"),
    "7 does not divide 24": ("UTC", "2026-03-28T00:00", 7, "00+00 07+00 14+00 21+00 00+00 07+00"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_intervals_of_cameras_follow_the_local_clock(
    case: str, local_time: Callable[[str], None]
) -> None:
    zone, first, hours, shown = CHANGES[case]
    local_time(zone)
    counter = Counter(ZoneSet((LINE,), None, every_s=hours * 3600), NAMES)
    start_s = datetime.fromisoformat(f"{first}+00:00").timestamp()
    no_objects = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4))
    began = []
    for after_s in range(0, 60 * 3600, 600):
        wall = start_s + after_s, False
        _, rows = counter.update(*no_objects, float(after_s), SIZE, wall)
        began += [local_text(row.from_s) for row in rows]
    clock = [f"{text[11:13]}{text[19:].removesuffix(':00')}" for text in began]
    assert clock[: len(shown.split())] == shown.split()


def test_redrawing_one_line_keeps_the_state_of_the_others() -> None:
    gate = Shape("gate", ((700, 300), (900, 300)), True)
    counter = Counter(ZoneSet((LINE, gate, YARD)), NAMES)

    def update(time_s: float, *feet: tuple[float, float]) -> tuple[list[str], dict[str, list[int]]]:
        boxes = np.array([[x - 10, y - 40, x + 10, y] for x, y in feet])
        ids, classes = np.arange(1, len(feet) + 1), np.zeros(len(feet), np.int64)
        events, rows = counter.update(ids, classes, boxes, time_s, SIZE)
        return names(events), {row.zone: [*row.counts.values()] for row in rows}

    update(0.0, (300, 200), (800, 200), (200, 500))
    assert update(0.5, (300, 250), (800, 400), (200, 500))[0] == ["gate crosses in"]
    moved = replace(gate, points=((700, 380), (900, 380)))
    down, pit = replace(LINE, sides=("down", "up")), replace(YARD, name="pit")
    events, rows = counter.redraw(ZoneSet((pit, moved, down)), [None] * 3)
    assert names(events) == ["yard ends", "pit appears"]
    closed = {row.zone: [*row.counts.values()] for row in rows}  # intervals end at a redraw
    assert closed == {"door": [0, 0], "gate": [1, 0], "yard": [0, 0, 1, 1]}
    expected = ["pit enters", "door crosses in"], {}  # the door kept each track's side
    assert update(1.0, (300, 400), (800, 300), (200, 500)) == expected
    assert update(1.5, (300, 400), (800, 450), (200, 500)) == (["gate crosses in"], {})
    _, rows = update(61.0, (300, 400), (800, 450), (200, 500))
    assert rows == {"door": [1, 0], "gate": [1, 0], "pit": [1, 0, 1, 0]}
    totals = {zone.name: zone.counts["person"] for zone in totals_of("", counter)}
    assert totals["gate"] == {"in": 2, "out": 0}, "crossings before and after the gate was moved"
    assert totals["yard"]["ended"] == 1
    series = {(item.zone, item.class_name): item.counts for item in history_of("", counter).series}
    assert len(series) == 4, "one curve for each name"
    assert series["gate", "person"]["in"] == [2]


def test_redrawing_closes_rows_of_zeros_and_opens_new_ones() -> None:
    gate = Shape("gate", ((700, 300), (900, 300)), True)
    counter = Counter(ZoneSet((LINE, gate)), NAMES, listed=(0, 1))
    no_objects = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4))
    for time_s in (0.0, 9.0):
        assert counter.update(*no_objects, time_s, SIZE) == ([], [])
    _, before = counter.redraw(ZoneSet((LINE, YARD)), [None, frozenset({1})])
    _, after = counter.update(*no_objects, 60.0, SIZE)
    assert [(row.from_s, row.to_s, row.zone, row.class_name, row.frames) for row in before] == [
        (0.0, 9.0, zone, name, 2) for zone in ("door", "gate") for name in NAMES[:2]
    ]
    figures = [(row.from_s, row.to_s, row.zone, row.class_name, row.frames) for row in after]
    listed = [("door", NAMES[0]), ("door", NAMES[1]), ("yard", NAMES[1])]
    assert figures == [(9.0, 60.0, *shape_and_class, 0) for shape_and_class in listed]
    counter.update(*no_objects, 61.0, SIZE)
    _, last = counter.finish()
    assert {(row.zone, row.frames) for row in last} == {("door", 2), ("yard", 2)}
