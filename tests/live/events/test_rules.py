"""Test the rules of events: ``appears`` needs 3 frames of 5, ``leaves`` needs 2 s of absence."""

from itertools import chain

import numpy as np
import pytest

from detector.core.types import Arrival, Detections, Frame
from detector.live.events.rules import EventRules
from detector.live.sources.base import CONNECTING, LIVE, STALLED, WAITING, FeedFacts

NAMES = ("person", "car")
SECOND = 1_000_000_000
START_S = 1_800_000_000.0


def frame(at_s: float, camera: str = "door", jump_s: float = 0.0) -> Frame:
    """Return a frame at ``at_s``. ``jump_s``: how far the wall clock was set ahead."""
    arrival = Arrival(camera, 1, int(at_s * SECOND), START_S + at_s + jump_s)
    return Frame(0, 0, at_s, np.zeros((2, 2, 3), np.uint8), arrival=arrival)


def detections(*class_ids: int) -> Detections:
    count = len(class_ids)
    return Detections(
        np.zeros((count, 4), np.float32),
        np.ones(count, np.float32),
        np.array(class_ids, np.int64),
        NAMES,
    )


def feed(rules: EventRules, counts: str, camera: str = "door", step_s: float = 0.1) -> list[str]:
    """Update ``rules`` with a frame every ``step_s``. ``counts`` has a digit for each frame: its
    number of persons. Return events such as "0.2 appears person 1": time, kind, class, count."""
    return [
        f"{at * step_s:.1f} {event.event} {event.class_name} {event.count}"
        for at, count in enumerate(counts)
        for event in rules.update(frame(at * step_s, camera), detections(*[0] * int(count)))
    ]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("111", ["0.2 appears person 1"]),
        ("10101", ["0.4 appears person 1"]),
        ("1001001", []),  # never 3 of 5
        ("0000", []),
        ("1123211", ["0.2 appears person 2"]),
        ("111" + "0" * 19, ["0.2 appears person 1"]),  # absent for 1.9 s
        ("111" + "0" * 20, ["0.2 appears person 1", "2.2 leaves person 1"]),
        (
            "131" + "0" * 20 + "111",
            ["0.2 appears person 1", "2.2 leaves person 3", "2.5 appears person 1"],
        ),
        ("111" + ("0" * 19 + "1") * 3, ["0.2 appears person 1"]),  # flickers, but stays present
    ],
)  # fmt: skip
def test_class_appears_in_3_of_5_frames_and_leaves_after_2_s(counts, expected):
    assert feed(EventRules(0, START_S), counts) == expected


def test_event_has_the_time_of_the_first_sighting():
    rules = EventRules(0, START_S)
    rules.update(frame(0.0), detections())
    rules.update(frame(0.1), detections(0))
    rules.update(frame(0.2), detections(0))
    (appears,) = rules.update(frame(0.3), detections(0, 0))
    assert (appears.time_s - START_S, appears.since_s - START_S) == pytest.approx((0.3, 0.1))
    (leaves,) = rules.update(frame(5.0), detections())
    assert (leaves.time_s - START_S, leaves.since_s - START_S) == pytest.approx((5.0, 0.1))


def test_classes_and_cameras_are_independent():
    rules = EventRules(0, START_S)
    for at in range(3):
        door = rules.update(frame(at, "door"), detections(0))
        yard = rules.update(frame(at, "yard"), detections(1, 1))
    assert [(event.camera, event.class_name, event.count) for event in (*door, *yard)] == [
        ("door", "person", 1),
        ("yard", "car", 2),
    ]


def test_jump_of_the_wall_clock_changes_no_decision():
    rules = EventRules(0, START_S)
    for at in range(3):
        rules.update(frame(at * 0.1), detections(0))
    assert rules.update(frame(0.4, jump_s=3600), detections()) == []  # really 0.2 s later
    (leaves,) = rules.update(frame(2.3, jump_s=-3600), detections())
    assert leaves.event == "leaves"


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0, -86_400.0, 365 * 86_400.0, -1.2])
def test_event_durations_survive_a_jump_of_the_wall_clock(jump_s):
    """An event's time minus its start is the true duration, even if the clock was set."""
    rules = EventRules(0, START_S)
    (up,) = rules.feed_changed("door", state(LIVE, 1.0), SECOND, START_S + 1.0)
    (appears,) = chain(*(rules.update(frame(2 + at / 10), detections(0)) for at in range(3)))
    (leaves,) = rules.update(frame(5.0, jump_s=jump_s), detections())
    (down,) = rules.forget("door", 7 * SECOND, START_S + 7 + jump_s)
    dwells = [event.time_s - event.since_s for event in (up, appears, leaves, down)]
    assert dwells == pytest.approx([1.0, 0.2, 3.0, 6.0])
    assert leaves.time_s == START_S + 5 + jump_s


def test_small_clock_jump_does_not_change_since_utc():
    """Programs that read the events match ``leaves`` with ``appears`` by ``since_utc``."""
    rules = EventRules(0, START_S)
    (appears,) = chain(*(rules.update(frame(at / 10), detections(0)) for at in range(3)))
    (leaves,) = rules.update(frame(5.0, jump_s=0.3), detections())
    assert leaves.since_s == appears.since_s


def test_slow_camera_does_not_repeat_events():
    assert feed(EventRules(0, START_S), "11111", step_s=3.0) == ["6.0 appears person 1"]


def state(name: str, since_s: float, error: str | None = None) -> FeedFacts:
    return FeedFacts(name, int(since_s * SECOND), error=error)


def test_camera_states_become_up_and_down_events():
    rules = EventRules(0, START_S)

    def change(facts: FeedFacts, now_s: float) -> list[tuple[object, ...]]:
        events = rules.feed_changed("door", facts, int(now_s * SECOND), START_S + now_s)
        return [
            (
                event.event,
                event.class_name,
                round(event.time_s - START_S, 3),
                round(event.since_s - START_S, 3),
                event.reason,
            )
            for event in events
        ]

    assert change(state(CONNECTING, 0.0), 0.2) == []  # neither up nor down yet
    assert change(state(LIVE, 1.0), 1.5) == [("camera_up", None, 1.0, 0.0, None)]
    assert change(state(LIVE, 1.0), 2.5) == []
    feed(rules, "111")
    assert change(state(STALLED, 4.0, "silence for 5 s"), 4.1) == [
        ("camera_down", None, 4.0, 1.0, "silence for 5 s"),
        ("leaves", "person", 4.0, 0.0, "the camera is down"),
    ]
    assert change(state(WAITING, 6.0), 6.0) == []
    assert feed(rules, "111") == []  # pictures of the old connection, still in flight
    assert change(state(LIVE, 9.0), 9.0) == [("camera_up", None, 9.0, 4.0, None)]
    assert rules.update(frame(3.9), detections(0)) == []
    (appears,) = chain(*(rules.update(frame(at), detections(0)) for at in (9.0, 9.1, 9.2)))
    assert (appears.event, appears.since_s) == ("appears", START_S + 9)


def test_camera_down_from_the_start_is_reported_once():
    rules = EventRules(0, START_S)
    events = []
    for name, at_s in [("connecting", 0), ("waiting", 2), ("connecting", 3), ("waiting", 5)]:
        facts = state(name, at_s, "nothing listens")
        events += rules.feed_changed("door", facts, at_s * SECOND, START_S + at_s)
    assert [(event.event, event.time_s - START_S, event.since_s - START_S) for event in events] == [
        ("camera_down", 2, 0)
    ]
    assert events[0].reason == "nothing listens"
    (up,) = rules.feed_changed("door", state(LIVE, 7), 7 * SECOND, START_S + 7)
    assert (up.event, up.time_s - START_S, up.since_s - START_S) == ("camera_up", 7, 2)
    assert rules.forget("yard", 8 * SECOND, START_S + 8) == []


def test_removed_camera_sends_leaves_and_camera_down_events():
    rules = EventRules(0, START_S)
    rules.feed_changed("door", state(LIVE, 0.0), 0, START_S)
    feed(rules, "111")
    events = rules.forget("door", 7 * SECOND, START_S + 7)
    assert [event.event for event in events] == ["leaves", "camera_down"]
    assert rules.forget("door", 8 * SECOND, START_S + 8) == []


def test_absent_classes_are_forgotten():
    rules = EventRules(0, START_S)
    feed(rules, "1" + "0" * 10)
    assert rules._cameras["door"].classes == {}
