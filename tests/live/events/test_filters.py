"""Which events a receiver gets: ``events:`` of cameras.yaml, and two minutes of a busy road."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core.config.cameras import EventsConfig
from detector.core.errors import UsageError
from detector.core.types import Detections
from detector.live.base import RUN_ENDED, Event
from detector.live.camera_outputs import CameraEvents, _CameraRecording
from detector.live.events.filters import CLIPS, NO_ZONE, SNAPSHOTS, WEBHOOK, EventFilters
from detector.live.routing import Router
from detector.live.sources.base import WEBCAM
from detector.live.sources.cameras import read_cameras
from detector.tracks.book import Book
from detector.tracks.counting import Counter
from detector.tracks.zones_file import Shape, ZoneSet
from tests.live.events.test_delivery import Subscriber, broker, needs_broker, receiver
from tests.live.events.test_objects import followed
from tests.live.events.test_rules import NAMES, START_S, frame
from tests.live.fake_feeds import Clock, FakeFeed, camera
from tests.live.test_routing import Noted
from tests.waiting import wait_for

CROSSES = Event("crosses", "door", START_S, START_S, "person", 1, track=1, zone="gate")
LEAVES = replace(CROSSES, event="leaves", zone="yard", since_s=START_S - 9)
SEEN = replace(CROSSES, event="appears", zone=None)
DOWN = Event("camera_down", "door", START_S, START_S)
EVENTS = {"crosses": CROSSES, "leaves": LEAVES, "seen": SEEN, "down": DOWN}
CARS, PASSERS = 91, 120
ROAD = ZoneSet((Shape("road", ((0.5, 0.0), (0.5, 1.0)), True),), (1.0, 1.0))


def filters(folder: Path, text: str, zones=("gate", "yard"), **more) -> EventFilters:
    (folder / "cameras.yaml").write_text(f"cameras: {{door: 'rtsp://h/1'}}\nevents: {{{text}}}\n")
    made = EventFilters(NAMES, lambda name: zones, **more)
    made.take(read_cameras(folder / "cameras.yaml"))
    return made


def passed(made: EventFilters, receiver: str = WEBHOOK) -> str:
    return " ".join(name for name, event in EVENTS.items() if made.passes(receiver, event))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("mqtt: {kinds: [enters]}", "crosses leaves down"),
        ("webhook: {view: true}", "crosses leaves seen down"),
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
def test_what_passes(given: str, names: str, tmp_path: Path, local_time) -> None:
    made = filters(tmp_path, given)
    assert passed(made) == names
    assert sum(made.counts.values()) == len(EVENTS), "what is held back is counted"


def test_other_defaults(tmp_path: Path) -> None:
    """Without lines and zones everything passes; pictures are only of objects in view."""
    unzoned, zoned = filters(tmp_path, "", ()), filters(tmp_path, "")
    assert (passed(unzoned), passed(unzoned, SNAPSHOTS)) == (" ".join(EVENTS), "crosses seen")
    assert passed(zoned, CLIPS) == "crosses"
    assert zoned.line() == f"events held back: 1 from clips ({NO_ZONE})", "nobody set a filter"


def test_a_planned_end_is_no_alarm(tmp_path: Path) -> None:
    ended, failed = (replace(DOWN, reason=why) for why in (RUN_ENDED, "the run failed"))
    for given, passes in (("kinds: camera_down", False), ("run_end: true", True)):
        made = filters(tmp_path, f"webhook: {{{given}}}")
        assert [made.passes(WEBHOOK, one) for one in (ended, failed)] == [passes, True]
        assert made.line() == ""


def test_hours_of_a_filter_follow_local_time(tmp_path: Path, local_time) -> None:
    """The night of 22:00-06:00 has seven hours when summer time begins, and nine when it ends."""
    local_time("Europe/Berlin")
    made = filters(tmp_path, "webhook: {hours: 22:00-06:00}")
    for evening, hours in (("2027-01-15", 8), ("2027-03-27", 7), ("2027-10-30", 9)):
        noon = datetime.fromisoformat(f"{evening}T12:00").timestamp()
        times = [replace(CROSSES, time_s=noon + 60 * minute) for minute in range(24 * 60)]
        assert sum(made.passes(WEBHOOK, one) for one in times) == hours * 60


def test_the_limit_of_a_minute_is_shared(tmp_path: Path) -> None:
    """A busy line takes the rest of any 60 s; a quiet zone and a dead camera still get through."""
    now = [0.0]
    limits = "webhook: {per_minute: 3}, snapshots: {per_minute: 1}"
    made = filters(tmp_path, limits, clock=lambda: now[0])

    def at(seconds: float, event: Event = CROSSES) -> bool:
        now[0] = seconds
        return made.passes(WEBHOOK, event)

    assert [at(second) for second in range(0, 60, 10)] == [True, True, *[False] * 4]
    assert [at(59, LEAVES), at(59.5, LEAVES), at(59.6, DOWN)] == [True, False, True]
    assert [at(60), at(60.5), at(70), at(120)] == [True, False, True, True]
    assert made.counts[WEBHOOK, "per_minute"] == 6
    assert [made.passes(SNAPSHOTS, CROSSES) for _ in range(2)] == [True, True], "of one picture"
    assert not made.passes(SNAPSHOTS, replace(CROSSES, time_s=START_S + 1))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("webhok: {}", "events: unknown key 'webhok'; did you mean webhook? known: webhook, mqtt"),
        ("webhook: {kinds: [cross]}", "'cross' is not one of appears, leaves, crosses, enters"),
        ("webhook: {classes: [dog]}", "webhook.classes dog: unknown class; the model has 2: pers"),
        ("mqtt: {zones: [gat]}", "zones: unknown line or zone 'gat'; did you mean gate? known: g"),
        ("webhook: 'http://h/'", "webhook: 'http://h/' is not a mapping; known: kinds, classes"),
        ("clips: {kinds: [camera_down]}", "clips.kinds: events of a camera have no picture"),
        ("webhook: {stay: 9, kinds: [crosses]}", "stay: only leaves, stays, ends have one"),
        ("webhook: {hours: 22:00-22:00}", "'22:00-22:00' is not a span such as 22:00-06:00"),
    ],
)
def test_what_is_refused(given: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        filters(tmp_path, given)
    assert said in str(refused.value)
    with pytest.raises(UsageError, match="add --zones FILE"):
        filters(tmp_path, "webhook: {kinds: [crosses]}", ())


def test_a_clip_lasts_while_somebody_is_there(tmp_path: Path) -> None:
    """A clip of someone who enters the yard lasts until the object leaves the yard or the view."""
    wanted: list[bool] = []
    recorder = SimpleNamespace(wants_pictures=True, write=lambda *given: wanted.append(given[2]))
    webcam = replace(camera(), kind=WEBCAM)
    recording = _CameraRecording(recorder, webcam, FakeFeed(webcam, print, Clock()))
    recording.accepts = partial(filters(tmp_path, "").passes, CLIPS)
    gone, entered = replace(SEEN, event="leaves"), replace(CROSSES, event="enters", zone="yard")
    for events in ([SEEN], [CROSSES], [entered], [gone], [entered], [], [LEAVES], [LEAVES]):
        for event in events:
            recording.handle(event)
        recording.write(frame(0), followed(1))
    assert wanted == [False, True, True, False, True, True, False, False]


@needs_broker
@pytest.mark.net
@pytest.mark.slow
def test_a_busy_road(tmp_path: Path) -> None:
    """In two minutes, each crossing is one event for the webhook, for MQTT and for a picture;
    nothing else is."""
    pytest.importorskip("paho.mqtt")
    made, book = filters(tmp_path, "", ("road",)), Book("door", Counter(ROAD, NAMES))
    with receiver() as (server, url), broker(tmp_path, "allow_anonymous true") as port:
        config = EventsConfig(webhook=url, mqtt=f"mqtt://127.0.0.1:{port}/x")
        with Subscriber(port) as subscriber:

            def texts() -> list[str]:
                return [text for topic, text, _ in subscriber.got if topic == "x/door/event"]

            events = CameraEvents(tmp_path, config, print, made)
            given = {"rules": events.rules, "tell": events.tell, "snapshot": events.add_snapshot}
            router = Router(lambda camera, feed: [], Noted(), **given)
            router.open(camera(), None, None)
            for step in range(600):
                one, found = frame(step / 5), road(step)
                one.picture = np.zeros((100, 200, 3), np.uint8)
                router.write(one, replace(found, scene=book.update(one, found, one.time_s)))
            wait_for(lambda: server.got.qsize() >= CARS <= len(texts()))
            events.close()
            posted = [json.loads(server.got.get()[2]) for _ in range(server.got.qsize())]
            told = [json.loads(text) for text in texts()]
    assert posted == told
    assert [(event["event"], event["zone"]) for event in told] == [("crosses", "road")] * CARS
    assert len({one["track"] for one in told}) == CARS
    others = (
        f"{2 * (CARS + PASSERS)} from mqtt ({NO_ZONE}), {CARS + PASSERS} from snapshots ({NO_ZONE})"
    )
    assert made.line().startswith(f"events held back: {others}")


def road(step: int) -> Detections:
    """Cars that drive over the middle of a picture of 200 x 100, and people who stop before it."""
    cars = {one: 40 + 10 * (step - 6 * one) for one in range(CARS) if 0 <= step - 6 * one < 13}
    people = {one: 20 + 2 * (step - 4 * one) for one in range(PASSERS) if 0 <= step - 4 * one < 9}
    found = followed(*(one + 1 for one in cars), *(CARS + one + 1 for one in people), class_id=1)
    found.class_ids[len(cars) :] = 0
    for row, x in enumerate((*cars.values(), *people.values())):
        found.boxes[row] = x - 10, 40, x + 10, 60
    return found
