"""Publishes events by MQTT, with paho-mqtt (extra ``mqtt``).

TOPIC/available           online, or offline (last will); retained
TOPIC/CAMERA/state        up or down; retained
TOPIC/CAMERA/event        events, as JSON
TOPIC/CAMERA/count/CLASS  number of objects of the class; 0 when none remains; retained
TOPIC/CAMERA/zone/NAME/in, out   crossings of a line today; retained
TOPIC/CAMERA/zone/NAME/inside    objects in a zone; retained
"""

from __future__ import annotations

import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from detector.core.errors import UsageError
from detector.core.errors.addresses import Address
from detector.core.errors.secrets import keep_secret
from detector.live.base import APPEARS, CAMERA_DOWN, CAMERA_UP, LEAVES, STAYS, Event
from detector.live.events.queued_target import LAST_MOMENT_S, ROOM, explain
from detector.live.events.wording import as_json

PORTS = {"mqtt": 1883, "mqtts": 8883}
LONGEST_PAUSE_S = 30  # between attempts to connect; the pause doubles from 1 s
STEADY_S = 60.0  # a connection that lasted this long was steady, so its loss is always reported
LONGEST_TOPIC = 65_535  # bytes (MQTT 3.1.1, section 1.5.3)
NOTHING, TROUBLE, REFUSAL = range(3)  # severity of the worst problem reported so far
NO_CONNECTION = 4  # MQTT_ERR_NO_CONN: paho keeps the message for the next connection
INSTALL = "--mqtt needs paho-mqtt; install it with: pip install 'detect-video[mqtt]'"


def is_topic(text: str) -> bool:
    return text[:1] not in ("", "$") and text == text.strip("/") and not {*"+#\0"} & {*text}


def level(text: str) -> str:
    """Escape a text for one topic level: ``/``, ``+``, ``#`` and controls become %XX."""
    return quote(text, safe=" !$&'()*,-.:;=@[]_~")


class MqttTarget:
    """Keeps a connection to a broker. paho has a thread and a bounded queue, and reconnects."""

    name = "mqtt"
    subscribes = False
    # Selects the events for TOPIC/CAMERA/event.
    accepts: Callable[[Event], bool] = staticmethod(lambda event: True)

    def __init__(
        self,
        url: str,
        user: str | None = None,
        password: str | None = None,
        *,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start to connect. Raises UsageError for an invalid address, or if paho is missing."""
        self._address = Address(url)
        host, port, self._topic, tls, user, password = parse_broker(url, user, password)
        from detector.live.events.broker import Client

        self._notice = notice
        self._refused = self._closing = self._is_down = False
        self._reported = NOTHING
        self._since_s = 0.0  # monotonic time at which the connection began; 0 without a connection
        self._lock = threading.Lock()
        self._lost = 0
        self._pending = 0  # unacknowledged messages
        self._latest: dict[str, str] = {}  # retained topic -> its newest value
        self._outdated: set[str] = set()  # topics whose newest value did not fit into the queue
        self._client = client = Client(self.subscribes)
        if user is not None:
            client.username_pw_set(user, password)
        if tls:
            client.tls_set()
        client.max_queued_messages_set(ROOM)
        client.reconnect_delay_set(1, LONGEST_PAUSE_S)
        client.will_set(f"{self._topic}/available", "offline", qos=1, retain=True)
        client.on_connect, client.on_publish = self._on_connect, self._on_publish
        client.on_message = self._on_message
        client.on_connect_fail, client.on_disconnect = self._on_connect_fail, self._on_disconnect
        client.connect_async(host, port, keepalive=30)
        client.loop_start()

    def _on_connect(self, client: Any, data: Any, flags: Any, code: Any, more: Any) -> None:
        if code.is_failure:
            self._refused = True
            self._report_once(f"the broker refused the connection: {code}", REFUSAL)
            return
        self._refused, self._since_s = False, time.monotonic()
        self._keep(f"{self._topic}/available", "online")

    def _on_connect_fail(self, client: Any, data: Any) -> None:
        self._refused = True
        error = sys.exception()  # paho calls this inside its except block
        why = "the broker cannot be reached"
        if isinstance(error, ssl.SSLError):
            why = f"TLS failed: {explain(error)}"
        self._report_once(f"{why}; retrying")

    def _on_disconnect(self, client: Any, data: Any, flags: Any, code: Any, more: Any) -> None:
        """Report a lost connection: always if it was steady (``STEADY_S``), otherwise only once."""
        if self._since_s and time.monotonic() - self._since_s >= STEADY_S:
            self._reported = NOTHING
        self._since_s = 0.0
        if code.is_failure and not self._closing:
            self._report_once("connection lost, or an invalid packet received; retrying")

    def _report_once(self, why: str, weight: int = TROUBLE) -> None:
        """Report a problem if all problems reported so far had a lower ``weight``."""
        if weight > self._reported:
            self._reported, self._is_down = weight, True
            self._notice(f"events to {self._address}: {why}")

    def _on_publish(self, client: Any, data: Any, number: int, code: Any, more: Any) -> None:
        if self._is_down and not code.is_failure:
            self._is_down = False
            self._notice(f"events to {self._address}: connected again")
        with self._lock:
            self._pending -= 1
            self._lost += bool(code.is_failure)
            topic = self._outdated.pop() if self._outdated else None
            self._lost -= topic is not None
        value = None
        while topic is not None and value != (newest := self._latest.get(topic, "")):
            # If ``_keep`` publishes a newer value meanwhile, ours may replace it, so publish again.
            value = newest
            self._publish(topic, value, retain=True)

    def send(self, event: Event) -> None:
        prefix = f"{self._topic}/{level(event.camera)}"
        if self.accepts(event):
            self._publish(f"{prefix}/event", as_json(event), retain=False)
        if event.event in (CAMERA_UP, CAMERA_DOWN):
            state = "up" if event.event == CAMERA_UP else "down"
            self._keep(f"{prefix}/state", state)
        if event.zone is not None and event.event != STAYS:
            what = event.direction or "inside"
            self._keep(f"{prefix}/zone/{level(event.zone)}/{what}", str(event.count))
        in_sight = event.zone is None and event.event in (APPEARS, LEAVES)
        if event.class_name is not None and in_sight:
            counted = event.event == APPEARS or event.track is not None
            count = event.count if counted else 0
            self._keep(f"{prefix}/count/{level(event.class_name)}", str(count))

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        """Handle a message of a subscribed topic."""

    def _keep(self, topic: str, payload: str) -> None:
        """Publish a retained value, later if the queue is full."""
        with self._lock:
            self._latest[topic] = payload
        self._publish(topic, payload, retain=True)

    def _publish(self, topic: str, payload: str | bytes, *, retain: bool) -> None:
        if len(topic.encode()) > LONGEST_TOPIC:
            with self._lock:
                self._lost += 1
            return
        with self._lock:
            self._pending += 1
        # Do not hold our lock here: paho holds its own lock when ``_on_publish`` asks for ours.
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        if sent.rc not in (0, NO_CONNECTION):
            with self._lock:
                self._pending -= 1
                self._lost += 1
                if topic in self._latest:
                    self._outdated.add(topic)

    @property
    def failing(self) -> bool:
        return not self._client.is_connected()

    def lost(self) -> int:
        with self._lock:
            return self._lost

    def close(self) -> None:
        self._closing = True
        deadline = time.monotonic() + LAST_MOMENT_S
        while self._pending and not self._client.is_connected() and not self._refused:
            if time.monotonic() >= deadline:
                break
            time.sleep(0.01)  # a very short run may not have connected yet
        if self._client.is_connected():
            self._keep(f"{self._topic}/available", "offline")
            while self._pending and time.monotonic() < deadline:
                time.sleep(0.01)
        with suppress(OSError, ValueError):
            self._client.disconnect()
        self._client.loop_stop()
        with self._lock:
            self._lost += self._pending
            self._pending = 0


def parse_broker(
    url: str, user: str | None = None, password: str | None = None
) -> tuple[str, int, str, bool, str | None, str | None]:
    """Return host, port, topic, TLS, user and password. Raises UsageError."""
    address = Address(url)
    if find_spec("paho") is None:
        raise UsageError(INSTALL)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError("--mqtt: invalid address; write mqtt://HOST[:PORT]/TOPIC") from error
    topic = unquote(parts.path).strip("/")
    if parts.scheme not in PORTS or not host:
        raise UsageError(f"--mqtt {address}: write mqtt://HOST[:PORT]/TOPIC, or mqtts:// for TLS")
    if not topic:
        raise UsageError(f"--mqtt {address}: has no topic; add one: {address}/detect-video")
    if "?" in url or "#" in url or not is_topic(topic):  # urlsplit cuts the path at ? and #
        raise UsageError(f"--mqtt {address}: the topic must not contain +, # or ?, or start with $")
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "") or password
    if password:
        keep_secret(password)
    return host, port or PORTS[parts.scheme], topic, parts.scheme == "mqtts", user, password
