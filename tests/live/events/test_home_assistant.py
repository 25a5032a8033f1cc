"""Test that cameras become devices of Home Assistant, through a real broker."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core.errors import UsageError
from detector.live.base import LiveFigures, StreamFigures, ZoneFigures
from detector.live.events.home_assistant import (
    BIRTH,
    HomeAssistant,
    make_device_config,
    make_entities,
    make_id,
)
from detector.live.events.snapshots import Snapshots
from detector.live.watched_files import NO_AGES
from tests.live.events.test_delivery import Subscriber, broker, event, needs_broker
from tests.waiting import wait_for

# Keys that Home Assistant 2026.2.3 requires; home_assistant_check.py checks the whole schema.
REQUIRED = {"sensor": {"stat_t"}, "binary_sensor": {"stat_t"}, "image": {"img_t"}}
ROAD = SimpleNamespace(name="road", is_line=True, points=(), sides=("down", "up"))
YARD = SimpleNamespace(name="büro/tür +#", is_line=False, points=(), sides=("in", "out"))
GATE = SimpleNamespace(name="gate", is_line=True, points=(), sides=("in", "out"))


def figures(*shapes, name: str = "door", processed: int = 1) -> LiveFigures:
    hours = ((3, 1),) * 2
    zones = tuple(ZoneFigures(shape, {}, None if shape.is_line else 2, hours) for shape in shapes)
    stream = StreamFigures(name, "", "live", 0, 1, processed, {}, 0, 0, NO_AGES, zones=zones)
    return LiveFigures((stream,), 1.0, None, None)


def publish(target: HomeAssistant, *shapes, cameras=("door",), **more) -> None:
    target.publish_changes(dict.fromkeys(cameras, ("person",)), lambda: figures(*shapes, **more))


def test_entities_have_what_home_assistant_requires():
    entities = make_entities("x/y", "door", (ROAD, YARD), ("person",))
    for key, entity in entities.items():
        assert make_id(key) == key
        assert entity.keys() >= REQUIRED[entity["p"]] | {"uniq_id"}
    assert len({entity["uniq_id"] for entity in entities.values()}) == len(entities) == 8
    assert entities["line_road_in"]["name"] == "road down"


@pytest.fixture
def run(tmp_path):
    with broker(tmp_path, "allow_anonymous true") as port:
        target = HomeAssistant(f"mqtt://127.0.0.1:{port}/x", prefix="ha")
        with Subscriber(port) as subscriber:
            yield target, subscriber, port
        target.close()


def latest_values(subscriber: Subscriber) -> dict[str, str]:
    return {topic: payload for topic, payload, _ in subscriber.messages}


def devices(subscriber: Subscriber, camera: str = "door") -> list[set[str]]:
    """Return the entity ids in each device message; a minus marks removed entities."""
    payloads = [p for topic, p, _ in subscriber.messages if topic == f"ha/device/x/{camera}/config"]
    cmps = [json.loads(payload)["cmps"] if payload else {} for payload in payloads]
    return [
        {key if len(entity) > 1 else f"-{key}" for key, entity in components.items()}
        for components in cmps
    ]


@needs_broker
@pytest.mark.net
def test_device_follows_lines_and_cameras_of_the_run(run, tmp_path):
    target, subscriber, port = run
    wait_for(lambda: target._republish)
    publish(target, processed=0)  # the camera's lines are not known yet
    publish(target, ROAD, YARD)
    wait_for(lambda: devices(subscriber))
    values = latest_values(subscriber)
    assert (values["x/door/zone/road/in"], values["x/door/zone/road/out"]) == ("6", "2")
    assert values["x/door/count/person"] == "0"
    assert [p for topic, p in values.items() if topic.endswith("/inside")] == ["2"]
    publish(target, ROAD, YARD)
    publish(target, GATE)
    wait_for(lambda: len(devices(subscriber)) == 3)
    first, changing, after = devices(subscriber)
    assert {entity_id for entity_id in changing if entity_id[0] != "-"} == after
    assert {entity_id[1:] for entity_id in changing - after} == first - after != set()
    target.close()
    # The next run has the line road instead of gate, and later another camera instead of door.
    target = HomeAssistant(f"mqtt://127.0.0.1:{port}/x", prefix="ha")
    wait_for(lambda: target._known_devices)
    publish(target, ROAD)
    wait_for(lambda: len(devices(subscriber)) == 5)
    assert "-line_gate_in" in devices(subscriber)[3] - devices(subscriber)[4]
    snapshots = Snapshots(tmp_path)
    snapshots.show = target.publish_snapshot
    snapshots.add_to(event(), np.zeros((9, 16, 3), np.uint8))
    wait_for(lambda: "x/door/snapshot" in latest_values(subscriber))
    publish(target, cameras=("other",), name="other")
    wait_for(lambda: devices(subscriber, "other"))
    # For the absent camera, the broker retains only the values of lines and zones.
    wait_for(
        lambda: all(
            "/zone/" in t for t, p in latest_values(subscriber).items() if p and "/door/" in t
        )
    )
    snapshots.close()
    target.close()


@needs_broker
@pytest.mark.net
def test_device_is_published_again_when_home_assistant_starts(run):
    target, subscriber, _ = run
    wait_for(lambda: target._republish)
    publish(target, ROAD)
    wait_for(lambda: devices(subscriber))
    subscriber.client.publish(BIRTH, "offline")
    subscriber.client.publish(BIRTH, "online")
    wait_for(lambda: target._republish)
    publish(target, ROAD)
    wait_for(lambda: len(devices(subscriber)) == 2)
    assert devices(subscriber)[0] == devices(subscriber)[1]


INVALID = [("+/config", b'{"cmps": {"a": {"p": "sensor", "x": 1}}}'), ("door/config", b"\xff")]
INVALID += [("door/config", b'{"cmps": [1]}'), ("door/config", b"[" * 100_000)]


def test_invalid_retained_devices_are_ignored():
    pytest.importorskip("paho.mqtt")
    target = HomeAssistant("mqtt://127.0.0.1:1/x", prefix="ha")
    for topic, payload in INVALID:
        message = SimpleNamespace(topic=f"ha/device/x/{topic}", payload=payload, retain=True)
        target._on_message(None, None, message)
    assert target._known_devices == {}
    target.close()


@pytest.mark.parametrize("prefix", ["", "a/", "a/#", "$x"])
def test_invalid_discovery_prefix_is_refused(prefix):
    with pytest.raises(UsageError, match="--mqtt-discovery"):
        HomeAssistant("mqtt://127.0.0.1:1/x", prefix=prefix)


@pytest.mark.slow
def test_devices_follow_the_published_schema():
    python = os.environ.get("DETECT_VIDEO_HOME_ASSISTANT")
    if python is None:
        pytest.skip("machine: DETECT_VIDEO_HOME_ASSISTANT names no Python with homeassistant")
    entities = make_entities("x/y", "door", (ROAD, YARD), ("person", "dining table"))
    payloads = [make_device_config("x/y", "door", {**entities, "old": {"p": "sensor"}})]
    command = [python, Path(__file__).with_name("home_assistant_check.py")]
    done = subprocess.run(command, input=json.dumps(payloads), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(sorted(REQUIRED))
