"""Test the filters of ``events:`` in cameras.yaml, alone and on two minutes of a busy road."""

import json
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core.errors import UsageError
from detector.core.types import Detections
from detector.live.base import RUN_ENDED, Event
from detector.live.camera_outputs import CameraEvents, _CameraRecording
from detector.live.config import EventsConfig
from detector.live.events.filters import CLIPS, NO_ZONE, SNAPSHOTS, WEBHOOK, EventFilters
from detector.live.routing import Router
from detector.live.sources.base import WEBCAM
from detector.live.sources.cameras import make_cameras
from detector.tracks.book import Book
from detector.tracks.counting import Counter
from detector.tracks.zones_file import Shape, ZoneSet
from tests.live.events.test_delivery import Subscriber, broker, needs_broker, receiver
from tests.live.events.test_objects import tracked
from tests.live.events.test_rules import NAMES, START_S, frame
from tests.live.fake_feeds import Clock, FakeFeed, camera
from tests.live.test_routing import FakeStatus
from tests.waiting import wait_for

CROSSES = Event("crosses", "door", START_S, START_S, "person", 1, track=1, zone="gate")
LEAVES = replace(CROSSES, event="leaves", zone="yard", since_s=START_S - 9)
APPEARS = replace(CROSSES, event="appears", zone=None)
DOWN = Event("camera_down", "door", START_S, START_S)
EVENTS = {"crosses": CROSSES, "leaves": LEAVES, "appears": APPEARS, "down": DOWN}
CARS, PASSERS = 91, 120
ROAD = ZoneSet((Shape("road", ((0.5, 0.0), (0.5, 1.0)), True),), (1.0, 1.0))


def filters(folder: Path, text: str, zones=("gate", "yard"), **more) -> EventFilters:
    (folder / "cameras.yaml").write_text(f"cameras: {{door: 'rtsp://h/1'}}\nevents: {{{text}}}\n")
    event_filters = EventFilters(NAMES, lambda name: zones, **more)
    event_filters.take(make_cameras([str(folder / "cameras.yaml")]))
    return event_filters


def passed(event_filters: EventFilters, receiver: str = WEBHOOK) -> str:
    return " ".join(name for name, event in EVENTS.items() if event_filters.passes(receiver, event))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("mqtt: {kinds: [enters]}", "crosses leaves down"),
        ("webhook: {view: true}", "crosses leaves appears down"),
        ("webhook: {kinds: crosses}", "crosses"),
        ("webhook: {kinds: []}", ""),
        ("webhook: {classes: [1]}", "down"),
        ("webhook: {classes: [person], zones: yard}", "leaves down"),
        ("webhook: {stay: 9}", "leaves down"),
        ("webhook: {stay: 9.1}", "down"),
        ("webhook: {stay: 9.1, kinds: [crosses, leaves]}", "crosses"),
        ("webhook: {hours: [00:00-01:00, 07:00-08:00]}", ""),  # it is 8:00:00 UTC
        ("webhook: {hours: 08:00-24:00}", "crosses leaves down"),
    ],
)
def test_filter_passes_matching_events_and_counts_all(
    text: str, names: str, tmp_path: Path, local_time
) -> None:
    event_filters = filters(tmp_path, text)
    assert passed(event_filters) == names
    assert sum(event_filters.counts.values()) == len(EVENTS), "every event is counted"


def test_default_filters_depend_on_zones_and_receiver(tmp_path: Path) -> None:
    """Without lines and zones every event passes. Only events of objects in view get pictures."""
    unzoned, zoned = filters(tmp_path, "", ()), filters(tmp_path, "")
    assert (passed(unzoned), passed(unzoned, SNAPSHOTS)) == (" ".join(EVENTS), "crosses appears")
    assert passed(zoned, CLIPS) == "crosses"
    assert zoned.line() == f"events held back: 1 for clips ({NO_ZONE})", "held back by default"


def test_planned_end_of_a_run_sends_no_camera_down_event(tmp_path: Path) -> None:
    ended, failed = (replace(DOWN, reason=why) for why in (RUN_ENDED, "the run failed"))
    for text, passes in (("kinds: camera_down", False), ("run_end: true", True)):
        event_filters = filters(tmp_path, f"webhook: {{{text}}}")
        assert [event_filters.passes(WEBHOOK, event) for event in (ended, failed)] == [passes, True]
        assert event_filters.line() == ""


def test_hours_of_a_filter_follow_local_time(tmp_path: Path, local_time) -> None:
    """22:00-06:00 has seven hours in the night when summer time begins, and nine when it ends."""
    local_time("Europe/Berlin")
    event_filters = filters(tmp_path, "webhook: {hours: 22:00-06:00}")
    for evening, hours in (("2027-01-15", 8), ("2027-03-27", 7), ("2027-10-30", 9)):
        noon = datetime.fromisoformat(f"{evening}T12:00").timestamp()
        times = [replace(CROSSES, time_s=noon + 60 * minute) for minute in range(24 * 60)]
        assert sum(event_filters.passes(WEBHOOK, event) for event in times) == hours * 60


def test_limit_per_minute_leaves_room_for_other_sources(tmp_path: Path) -> None:
    """One busy line cannot use up the limit: events of other zones and of the camera still pass."""
    now = [0.0]
    limits = "webhook: {per_minute: 3}, snapshots: {per_minute: 1}"
    event_filters = filters(tmp_path, limits, clock=lambda: now[0])

    def at(seconds: float, event: Event = CROSSES) -> bool:
        now[0] = seconds
        return event_filters.passes(WEBHOOK, event)

    assert [at(second) for second in range(0, 60, 10)] == [True, True, *[False] * 4]
    assert [at(59, LEAVES), at(59.5, LEAVES), at(59.6, DOWN)] == [True, False, True]
    assert [at(60), at(60.5), at(70), at(120)] == [True, False, True, True]
    assert event_filters.counts[WEBHOOK, "per_minute"] == 6
    twice = [event_filters.passes(SNAPSHOTS, CROSSES) for _ in range(2)]
    assert twice == [True, True], "both have the same picture"
    assert not event_filters.passes(SNAPSHOTS, replace(CROSSES, time_s=START_S + 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("webhok: {}", "events: unknown key 'webhok'; did you mean webhook? known: webhook, mqtt"),
        ("webhook: {kinds: [cross]}", "'cross' is not one of appears, leaves, crosses, enters"),
        ("webhook: {classes: [dog]}", "webhook.classes dog: unknown class; the model has 2 class"),
        ("mqtt: {zones: [gat]}", "zones: unknown line or zone 'gat'; did you mean gate? known: g"),
        ("webhook: 'http://h/'", "webhook: 'http://h/' is not a mapping; known: kinds, classes"),
        ("clips: {kinds: [camera_down]}", "clips.kinds: camera_up and camera_down have no picture"),
        ("webhook: {stay: 9, kinds: [crosses]}", "stay: only for leaves, stays, ends"),
        ("webhook: {hours: 22:00-22:00}", "'22:00-22:00' is not a span such as 22:00-06:00"),
    ],
)
def test_invalid_filter_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        filters(tmp_path, text)
    assert message in str(refused.value)
    with pytest.raises(UsageError, match="add --zones FILE"):
        filters(tmp_path, "webhook: {kinds: [crosses]}", ())


def test_clip_lasts_while_the_object_is_in_the_zone(tmp_path: Path) -> None:
    """The clip begins as the object enters the yard, and ends as it leaves the yard or the view."""
    in_clip: list[bool] = []
    recorder = SimpleNamespace(
        wants_pictures=True, write=lambda *arguments: in_clip.append(arguments[2])
    )
    webcam = replace(camera(), kind=WEBCAM)
    recording = _CameraRecording(recorder, webcam, FakeFeed(webcam, print, Clock()))
    recording.accepts = partial(filters(tmp_path, "").passes, CLIPS)
    left, entered = replace(APPEARS, event="leaves"), replace(CROSSES, event="enters", zone="yard")
    for events in ([APPEARS], [CROSSES], [entered], [left], [entered], [], [LEAVES], [LEAVES]):
        for event in events:
            recording.handle(event)
        recording.write(frame(0), tracked(1))
    assert in_clip == [False, True, True, False, True, True, False, False]


@needs_broker
@pytest.mark.net
@pytest.mark.slow
def test_busy_road_sends_one_event_per_crossing(tmp_path: Path) -> None:
    """Webhook, MQTT and snapshots get one event for each crossing, and no other events."""
    event_filters, book = filters(tmp_path, "", ("road",)), Book("door", Counter(ROAD, NAMES))
    with receiver() as (server, url), broker(tmp_path, "allow_anonymous true") as port:
        config = EventsConfig(webhook=url, mqtt=f"mqtt://127.0.0.1:{port}/x")
        with Subscriber(port) as subscriber:

            def texts() -> list[str]:
                return [
                    options for topic, options, _ in subscriber.messages if topic == "x/door/event"
                ]

            events = CameraEvents(tmp_path, config, print, event_filters)
            options = {"rules": events.rules, "send": events.send, "snapshot": events.add_snapshot}
            router = Router(lambda camera, feed: [], FakeStatus(), **options)
            router.open(camera(), None, None)
            for step in range(600):
                image, detections = frame(step / 5), road(step)
                image.picture = np.zeros((100, 200, 3), np.uint8)
                router.write(
                    image, replace(detections, scene=book.update(image, detections, image.time_s))
                )
            wait_for(lambda: server.posts.qsize() >= CARS <= len(texts()))
            events.close()
            posted = [json.loads(server.posts.get()[2]) for _ in range(server.posts.qsize())]
            published = [json.loads(options) for options in texts()]
    assert posted == published
    assert [(event["event"], event["zone"]) for event in published] == [("crosses", "road")] * CARS
    assert len({image["track"] for image in published}) == CARS
    others = (
        f"{2 * (CARS + PASSERS)} for mqtt ({NO_ZONE}), {CARS + PASSERS} for snapshots ({NO_ZONE})"
    )
    assert event_filters.line().startswith(f"events held back: {others}")


def road(step: int) -> Detections:
    """Return cars that cross the middle of a 200 x 100 picture, and people who stop earlier."""
    cars = {
        number: 40 + 10 * (step - 6 * number)
        for number in range(CARS)
        if 0 <= step - 6 * number < 13
    }
    people = {
        number: 20 + 2 * (step - 4 * number)
        for number in range(PASSERS)
        if 0 <= step - 4 * number < 9
    }
    detections = tracked(
        *(number + 1 for number in cars), *(CARS + number + 1 for number in people), class_id=1
    )
    detections.class_ids[len(cars) :] = 0
    for row, x in enumerate((*cars.values(), *people.values())):
        detections.boxes[row] = x - 10, 40, x + 10, 60
    return detections
