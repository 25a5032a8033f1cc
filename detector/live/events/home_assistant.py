"""Announces cameras to Home Assistant by MQTT discovery, in PREFIX/device/TOPIC/CAMERA/config.

A device shows the camera's state, its last snapshot (TOPIC/CAMERA/snapshot, a JPEG), and the counts
that mqtt.py publishes. Payload keys are Home Assistant's abbreviations:
https://www.home-assistant.io/integrations/mqtt/#device-discovery-payload
"""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detector.core import __version__
from detector.core.errors import UsageError
from detector.core.errors.parsing import parse_json
from detector.live.base import Event, LiveFigures, StreamFigures, ZoneShape
from detector.live.events.mqtt import MqttTarget, is_topic, level

BIRTH = "homeassistant/status"  # Home Assistant's default topic for its birth message
MOST_CLASSES = 20  # with more classes, a device gets no entities for classes; --classes can help
MOST_WAITING = 20  # snapshots are dropped while this many messages (or more) are unacknowledged
MOST_DEVICES = 256  # limit for devices of earlier runs, so that a broker cannot fill the memory
Entities = dict[str, dict[str, Any]]  # id -> config; a config with only "p" removes the entity


def make_id(text: str) -> str:
    """Replace forbidden characters; if there are any, append a hash."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    return plain if plain == text else f"{plain}-{zlib.crc32(text.encode()):08x}"


def make_entities(
    topic: str, camera: str, shapes: Sequence[ZoneShape], classes: Sequence[str]
) -> Entities:
    prefix = f"{topic}/{level(camera)}"
    state = {"stat_t": f"{prefix}/state", "pl_on": "up", "pl_off": "down"}
    entities: Entities = {
        "state": {
            "p": "binary_sensor",
            "dev_cla": "connectivity",
            "ent_cat": "diagnostic",
            **state,
        },
        # A "camera" is for live video. An "image" also shows the time of its last change.
        "snapshot": {"p": "image", "name": "Last snapshot", "img_t": f"{prefix}/snapshot"},
    }
    present = {f"class_{name}": (name, f"{prefix}/count/{level(name)}") for name in classes}
    for shape in shapes:
        name, values = shape.name, f"{prefix}/zone/{level(shape.name)}"
        if not shape.is_line:
            present[f"zone_{name}"] = name, f"{values}/inside"
            continue
        for way, side in zip(("in", "out"), shape.sides, strict=True):
            total = {"p": "sensor", "name": f"{name} {side}", "stat_cla": "total_increasing"}
            entities[f"line_{name}_{way}"] = {**total, "stat_t": f"{values}/{way}"}
    # Counts are unknown while the camera is down.
    up = {"t": f"{prefix}/state", "pl_avail": "up", "pl_not_avail": "down"}
    online = {"avty": [{"t": f"{topic}/available"}, up], "avty_mode": "all"}
    is_any = "{{ 'ON' if value | int(0) > 0 else 'OFF' }}"
    for key, (name, values) in present.items():
        count = {"p": "sensor", "name": f"{name} count", "stat_cla": "measurement"}
        occupancy = {"p": "binary_sensor", "name": f"{name} occupancy", "dev_cla": "occupancy"}
        entities[f"{key}_count"] = {**count, "stat_t": values, **online}
        entities[f"{key}_occupancy"] = {**occupancy, "stat_t": values, "val_tpl": is_any, **online}
    node = make_id(topic)
    ids = {make_id(key): entity for key, entity in entities.items()}
    return {key: {**entity, "uniq_id": f"{node}_{camera}_{key}"} for key, entity in ids.items()}


def make_device_config(topic: str, camera: str, entities: Entities) -> str:
    device = {"ids": [f"{make_id(topic)}_{camera}"], "name": camera, "mf": "detect-video"}
    origin = {"name": "detect-video", "sw": __version__}
    available = [{"t": f"{topic}/available"}]
    return json.dumps({"dev": device, "o": origin, "avty": available, "cmps": entities})


class HomeAssistant(MqttTarget):
    """Announces each camera at its first picture, because its lines are known then. A camera that
    is down keeps its device from earlier runs."""

    subscribes = True

    def __init__(self, *broker: Any, prefix: str, **more: Any) -> None:
        if not is_topic(prefix):
            raise UsageError("--mqtt-discovery: not a topic; the usual one is homeassistant")
        self._prefix = prefix
        self._order_lock = threading.Lock()  # published values must not overtake each other
        self._republish = False  # publish all retained values at the next ``publish_changes``
        # Camera -> what was announced: (shapes, classes), and the entities made from them.
        self._announced: dict[str, tuple[Any, Entities]] = {}
        # Entities that Home Assistant may know: camera -> id -> platform.
        self._known_devices: dict[str, dict[str, str]] = {}
        super().__init__(*broker, **more)

    def _config_topic(self, camera: str) -> str:
        return f"{self._prefix}/device/{make_id(self._topic)}/{camera}/config"

    def _on_connect(self, client: Any, data: Any, flags: Any, code: Any, more: Any) -> None:
        super()._on_connect(client, data, flags, code, more)
        if not code.is_failure:
            topics = {BIRTH, f"{self._prefix}/status", self._config_topic("+")}
            client.subscribe([(topic, 0) for topic in topics])
            self._republish = True

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        """Handle Home Assistant's birth message, or the retained config of an earlier run."""
        try:
            topic, payload = message.topic, message.payload.decode()
            if topic in (BIRTH, f"{self._prefix}/status"):
                self._republish |= payload == "online"
                return
            camera = make_id(topic.split("/")[-2])
            is_ours = message.retain and topic == self._config_topic(camera)
            if is_ours and len(self._known_devices) < MOST_DEVICES:
                given = parse_json(payload, topic)["cmps"].items()
                known = {key: str(one["p"]) for key, one in given if len(one) > 1}
                self._known_devices[camera] = known
        except (UsageError, ValueError, LookupError, TypeError, AttributeError):
            pass  # not a message of ours

    def send(self, event: Event) -> None:
        with self._order_lock:
            super().send(event)

    def publish_changes(
        self, cameras: Mapping[str, Sequence[str]], figures: Callable[[], LiveFigures]
    ) -> None:
        """Publish changes; called once a second. ``cameras``: name -> classes."""
        with self._order_lock:
            if self._republish:
                self._republish = False
                for topic, payload in list(self._latest.items()):
                    self._publish(topic, payload, retain=True)
            for stream in figures().streams:
                if stream.processed and stream.name in cameras:
                    self._announce(stream, cameras[stream.name])
            for camera in {*self._announced, *self._known_devices.copy()} - {*cameras}:
                self._drop(camera)

    def _announce(self, stream: StreamFigures, classes: Sequence[str]) -> None:
        camera, prefix = stream.name, f"{self._topic}/{level(stream.name)}"
        classes = classes if len(classes) <= MOST_CLASSES else ()
        for name in classes:
            if (topic := f"{prefix}/count/{level(name)}") not in self._latest:
                self._keep(topic, "0")
        for zone in stream.zones:
            values = {"in": zone.today[0], "out": zone.today[1], "inside": zone.inside}
            for what in ("in", "out") if zone.shape.is_line else ("inside",):
                topic, value = f"{prefix}/zone/{level(zone.shape.name)}/{what}", str(values[what])
                if self._latest.get(topic) != value:
                    self._keep(topic, value)
        shapes, before = [zone.shape for zone in stream.zones], self._known_devices.get(camera, {})
        announced, entities = self._announced.get(camera, (None, {}))
        if changed := announced != (shapes, classes):
            entities = make_entities(self._topic, camera, shapes, classes)
            self._announced[camera] = (shapes, classes), entities
        if removed := {key: {"p": p} for key, p in before.items() if key not in entities}:
            text = make_device_config(self._topic, camera, {**entities, **removed})
            self._publish(self._config_topic(camera), text, retain=True)
        if removed or changed:
            text = make_device_config(self._topic, camera, entities)
            self._keep(self._config_topic(camera), text)
            self._known_devices[camera] = {key: entity["p"] for key, entity in entities.items()}

    def _drop(self, camera: str) -> None:
        prefix = f"{self._topic}/{level(camera)}/"
        values = [topic for topic in list(self._latest) if topic.startswith(prefix)]
        for topic in (self._config_topic(camera), f"{prefix}snapshot", *values):
            self._publish(topic, "", retain=True)
            self._latest.pop(topic, None)
        self._announced.pop(camera, None)
        self._known_devices.pop(camera, None)

    def publish_snapshot(self, camera: str, jpeg: bytes) -> None:
        """Publish a snapshot, from any thread."""
        if self._client.is_connected() and self._pending < MOST_WAITING:
            self._publish(f"{self._topic}/{level(camera)}/snapshot", jpeg, retain=True)
