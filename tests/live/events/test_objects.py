"""Test events of single objects, for cameras whose objects have track ids."""

from collections.abc import Sequence

import numpy as np

from detector.core.types import Detections
from detector.live.base import Event
from detector.live.events.rules import EventRules
from detector.live.events.wording import as_document
from detector.live.sources.base import STALLED, WAITING, FeedFacts
from detector.tracks.book import Scene
from detector.tracks.counting import ZoneEvent
from tests.live.events.test_rules import SECOND, START_S, detections, frame


def tracked(*tracks: int, class_id: int = 0) -> Detections:
    objects = detections(*[class_id] * len(tracks))
    objects.track_ids = np.array(tracks, np.int64)
    return objects


def summarize(events: Sequence[Event]) -> list[str]:
    return [f"{event.event} {event.class_name} {event.track} {event.count}" for event in events]


def test_each_object_appears_and_leaves_with_its_id() -> None:
    rules = EventRules(0, START_S)
    assert summarize(rules.update(frame(0.0), tracked(1, -1))) == ["appears person 1 1"]
    assert summarize(rules.update(frame(0.1), tracked(1, 2))) == ["appears person 2 2"]
    assert summarize(rules.update(frame(1.0), tracked(2))) == []
    left = rules.update(frame(2.1), tracked(2))
    # Object 1 was last seen 2 s ago. One object remains.
    assert summarize(left) == ["leaves person 1 1"]
    assert left[0].since_s == START_S
    assert summarize(rules.update(frame(4.2), tracked())) == ["leaves person 2 0"]


def test_reused_track_id_of_another_class_is_a_new_object() -> None:
    rules = EventRules(0, START_S)
    rules.update(frame(0.0), tracked(1))
    events = rules.update(frame(0.1), tracked(1, class_id=1))
    assert summarize(events) == ["leaves person 1 0", "appears car 1 1"]


def test_objects_leave_when_their_camera_is_down_or_removed() -> None:
    for end in ("down", "out"):
        rules = EventRules(0, START_S)
        rules.feed_changed("door", FeedFacts("live", 0), 0, START_S)
        rules.update(frame(0.0), tracked(1, 2))
        if end == "down":
            facts = FeedFacts(STALLED, SECOND)
            events = rules.feed_changed("door", facts, SECOND, START_S + 1)
            assert summarize(rules.update(frame(0.9), tracked(1))) == []  # this frame was in flight
            (again,) = rules.update(frame(3.0), tracked(1))
            assert (again.event, again.since_s) == ("appears", START_S + 3)
        else:
            events = rules.forget("door", SECOND, START_S + 1)
        left = [event for event in events if event.event == "leaves"]
        assert summarize(left) == ["leaves person 1 1", "leaves person 2 0"]
        assert all(event.reason for event in left)


def test_events_of_lines_and_zones_carry_their_names() -> None:
    rules, objects = EventRules(0, START_S), tracked(1)
    rules.update(frame(4.0), objects)
    zone_events = (
        ZoneEvent(5.0, "gate", "crosses", "in", "person", 1, 3.0, 4.0),
        ZoneEvent(5.0, "yard", "leaves", "", "person", 1, 3.0, 4.0, since_s=2.0, until_s=5.0),
    )
    objects.scene = Scene((), zone_events, (), None)
    crosses, leaves = map(as_document, rules.update(frame(5.0), objects))
    assert (crosses["event"], crosses["zone"], crosses["direction"]) == ("crosses", "gate", "in")
    assert (crosses["track"], crosses["class"], crosses["count"]) == (1, "person", None)
    assert (leaves["event"], leaves["zone"], leaves["direction"]) == ("leaves", "yard", None)
    times = leaves["time_utc"], leaves["since_utc"]
    assert times == ("2027-01-15T08:00:05.000Z", "2027-01-15T08:00:02.000Z")
    rules.feed_changed("door", FeedFacts(WAITING, 6 * SECOND), 6 * SECOND, START_S + 6)
    assert len(rules.update(frame(5.0), objects)) == 2, "a late frame lost its zone events"


def test_event_without_a_track_has_no_fields_of_tracks() -> None:
    rules = EventRules(0, START_S)
    events = [event for t in range(3) for event in rules.update(frame(t / 10), detections(0))]
    (document,) = map(as_document, events)
    assert not {"track", "zone", "direction"} & document.keys()
