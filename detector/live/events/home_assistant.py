"""Cameras as devices of Home Assistant, by MQTT discovery: PREFIX/device/TOPIC/CAMERA/config.

A device has the camera's state, its last snapshot (TOPIC/CAMERA/snapshot, a JPEG), and the counts
that mqtt.py publishes. Keys of payloads are Home Assistant's abbreviations:
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
from detector.live.base import LiveFigures, StreamFigures, ZoneShape
from detector.live.events.mqtt import MqttTarget, level

BIRTH = "homeassistant/status"  # Home Assistant's default, with any prefix
MOST_CLASSES = 20  # a device with more cannot be read; --classes names those that matter
MOST_WAITING = 20  # messages without an answer; beyond that a snapshot is dropped
MOST_DEVICES, MOST_ENTITIES = 256, 1000  # of earlier runs; a broker may lie
NAME = "detect-video"


def identifier(text: str) -> str:
    """A text in the characters that ids may have; different texts have different ids."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    return plain if plain == text else f"{plain}-{zlib.crc32(text.encode()):08x}"


def entities(
    topic: str, camera: str, shapes: Sequence[ZoneShape], classes: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Id -> entity, of a camera. ``topic``: of the run."""
    place = f"{topic}/{level(camera)}"
    found: dict[str, dict[str, Any]] = {
        "state": {
            "p": "binary_sensor",
            "dev_cla": "connectivity",
            "ent_cat": "diagnostic",
            "stat_t": f"{place}/state",
            "pl_on": "up",
            "pl_off": "down",
        },
        # Not "camera": that is for live pictures. An image tells when it came.
        "snapshot": {"p": "image", "name": "Last snapshot", "img_t": f"{place}/snapshot"},
    }
    counted = {f"class_{name}": (name, f"{place}/count/{level(name)}") for name in classes}
    for shape in shapes:
        name, values = shape.name, f"{place}/zone/{level(shape.name)}"
        if not shape.is_line:
            counted[f"zone_{name}"] = name, f"{values}/inside"
            continue
        for way, side in zip(("in", "out"), shape.sides, strict=True):
            found[identifier(f"line_{name}_{way}")] = {
                "p": "sensor",
                "name": f"{name} {side}",
                "stat_t": f"{values}/{way}",
                "stat_cla": "total_increasing",
            }
    now = {  # what nobody knows while the camera is down
        "avty": [
            {"t": f"{topic}/available"},
            {"t": f"{place}/state", "pl_avail": "up", "pl_not_avail": "down"},
        ],
        "avty_mode": "all",
    }
    for key, (name, values) in counted.items():
        count = {"p": "sensor", "name": f"{name} count", "stat_cla": "measurement"}
        there = {"p": "binary_sensor", "name": f"{name} occupancy", "dev_cla": "occupancy"}
        there["val_tpl"] = "{{ 'ON' if value | int(0) > 0 else 'OFF' }}"
        found[identifier(f"{key}_count")] = {**count, "stat_t": values, **now}
        found[identifier(f"{key}_occupancy")] = {**there, "stat_t": values, **now}
    for key, entity in found.items():
        entity["uniq_id"] = f"{identifier(topic)}_{camera}_{key}"
    return found


def device_config(topic: str, camera: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The payload that announces a camera with these entities."""
    payload = {
        "dev": {"ids": [f"{identifier(topic)}_{camera}"], "name": camera, "mf": NAME},
        "o": {"name": NAME, "sw": __version__},
        "avty": [{"t": f"{topic}/available"}],
        "cmps": found,
    }
    return json.dumps(payload)


class HomeAssistant(MqttTarget):
    """Announces each camera from its first picture on, because its lines and zones are known then;
    one that is down keeps the device of earlier runs."""

    subscribes = True

    def __init__(
        self,
        url: str,
        user: str | None = None,
        password: str | None = None,
        *,
        prefix: str,
        complain: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._prefix = prefix.strip("/")
        if not self._prefix or any(sign in "+#\0" for sign in prefix) or prefix.startswith("$"):
            raise UsageError(
                "--mqtt-discovery: must be a topic without + and #; homeassistant is the default "
                "prefix of Home Assistant"
            )
        self._telling = threading.Lock()  # values come in order
        self._again = False  # all that is retained is to be published again
        self._made: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {}  # from what, entities
        # Camera -> id -> platform, of the entities that Home Assistant may have.
        self._before: dict[str, dict[str, str]] = {}
        super().__init__(url, user, password, complain=complain)

    def _config_topic(self, camera: str) -> str:
        return f"{self._prefix}/device/{identifier(self._topic)}/{camera}/config"

    def _connected(self, client: Any, data: Any, flags: Any, code: Any, more: Any) -> None:
        super()._connected(client, data, flags, code, more)
        if not code.is_failure:
            topics = {BIRTH, f"{self._prefix}/status", self._config_topic("+")}
            client.subscribe([(topic, 0) for topic in topics])
            self._again = True

    def _heard(self, client: Any, data: Any, message: Any) -> None:
        """That Home Assistant has started, or a device of an earlier run."""
        try:
            topic, payload = message.topic, message.payload.decode()
            if topic in (BIRTH, f"{self._prefix}/status"):
                self._again |= payload == "online"
                return
            camera = topic.split("/")[-2]
            given = parse_json(payload, topic)["cmps"] if message.retain and payload else {}
            known = {key: str(one["p"]) for key, one in given.items() if len(one) > 1}
        except (UsageError, ValueError, LookupError, TypeError, AttributeError):
            return  # not ours
        with self._lock:
            before = self._before.setdefault(camera, {}) if known else known
            if len(self._before) <= MOST_DEVICES and len(before) + len(known) <= MOST_ENTITIES:
                before.update((k, p) for k, p in known.items() if len(k) + len(p) < 400)

    def tell(self, event: Any) -> None:
        with self._telling:
            super().tell(event)

    def look(
        self, cameras: Mapping[str, Sequence[str]], figures: Callable[[], LiveFigures]
    ) -> None:
        """Announce what has changed, and bring values up to date. To be called once a second.
        ``cameras``: those of the run, with their classes."""
        with self._telling:
            if self._again:
                self._again = False
                for topic, payload in list(self._latest.items()):
                    self._publish(topic, payload, retain=True)
            changed = set()
            for stream in figures().streams:
                if stream.processed and stream.name in cameras:
                    changed |= self._see(stream, cameras[stream.name])
            with self._lock:
                before = {camera: dict(known) for camera, known in self._before.items()}
            for camera in {*self._made, *before} - {*cameras}:
                self._drop(camera)
            for camera, (_, found) in self._made.items():
                gone = {k: {"p": p} for k, p in before.get(camera, {}).items() if k not in found}
                if gone or camera in changed:
                    self._announce(camera, found, gone)

    def _see(self, stream: StreamFigures, classes: Sequence[str]) -> set[str]:
        """Keep the values of a camera. Returns its name if it has other entities now."""
        classes = classes if len(classes) <= MOST_CLASSES else ()
        place = level(stream.name)
        for name in classes:
            if f"{self._topic}/{place}/count/{level(name)}" not in self._latest:
                self._keep(f"{place}/count/{level(name)}", "0")
        for zone in stream.zones:
            if zone.shape.is_line:
                values = dict(zip(("in", "out"), zone.today, strict=True))
            else:
                values = {"inside": zone.inside or 0}
            for what, value in values.items():
                topic = f"{place}/zone/{level(zone.shape.name)}/{what}"
                if self._latest.get(f"{self._topic}/{topic}") != str(value):
                    self._keep(topic, str(value))
        shapes = [zone.shape for zone in stream.zones]
        if stream.name in self._made and self._made[stream.name][0] == (shapes, classes):
            return set()
        found = entities(self._topic, stream.name, shapes, classes)
        self._made[stream.name] = (shapes, classes), found
        return {stream.name}

    def _announce(
        self, camera: str, found: dict[str, dict[str, Any]], gone: dict[str, dict[str, Any]]
    ) -> None:
        """``gone``: an entity with nothing but its platform is removed."""
        topic = self._config_topic(camera)
        if gone:
            text = device_config(self._topic, camera, {**found, **gone})
            self._publish(topic, text, retain=True)
        self._keep_at(topic, device_config(self._topic, camera, found))
        with self._lock:
            self._before[camera] = {key: entity["p"] for key, entity in found.items()}

    def _drop(self, camera: str) -> None:
        """Remove a camera's device, and what the broker retains of the camera."""
        place = f"{self._topic}/{level(camera)}/"
        values = [topic for topic in self._latest if topic.startswith(place)]
        for topic in (self._config_topic(camera), f"{place}snapshot", *values):
            self._publish(topic, "", retain=True)
            self._latest.pop(topic, None)
        self._made.pop(camera, None)
        with self._lock:
            self._before.pop(camera, None)

    def show(self, camera: str, jpeg: bytes) -> None:
        """Publish a snapshot. From any thread."""
        if self._client.is_connected() and len(self._pending) < MOST_WAITING:
            self._publish(f"{self._topic}/{level(camera)}/snapshot", jpeg, retain=True)
