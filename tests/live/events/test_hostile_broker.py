"""Send events to MQTT brokers that send invalid data, flood or disconnect. ``scripts/live_check
broker`` tries the same brokers on whole runs."""

import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from detector.live.base import Event
from detector.live.events import mqtt
from detector.live.events.home_assistant import HomeAssistant
from detector.live.events.mqtt import MqttTarget
from tests.conftest import night
from tests.live.hostile_broker import KINDS, PATIENT, HostileBroker, hostile_broker
from tests.waiting import wait_for

pytest.importorskip("paho.mqtt")
pytestmark = [pytest.mark.net, pytest.mark.slow]
MOST_MB = 60  # allowed growth of memory; a broker that fills the memory would add hundreds of MB


def memory_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


class Attempt:
    """A hostile broker of the given kind, and an event target that sends one event to it."""

    def __init__(self, kind: str, make: Callable[..., MqttTarget]) -> None:
        self.kind, self.notices, self.broker = kind, [], HostileBroker(kind)
        url = f"mqtt://127.0.0.1:{self.broker.port}/x"
        self.target = make(url, notice=self.notices.append)
        self.target.send(Event("camera_up", "door", 1.0, 1.0))

    @property
    def is_finished(self) -> bool:
        """Return whether the broker had all connections that the test waits for: one if its kind is
        patient, otherwise enough that a second notice is possible."""
        if self.kind in PATIENT:
            return self.broker.connections == 1
        return bool(self.notices) and (self.broker.connections > 2 or self.broker.is_gone)


@pytest.mark.parametrize("every", [3, night(1)])
@pytest.mark.parametrize("make", [MqttTarget, partial(HomeAssistant, prefix="ha")])
def test_hostile_brokers_neither_kill_threads_nor_fill_memory(monkeypatch, make, every):
    monkeypatch.setattr(mqtt, "LONGEST_PAUSE_S", 1)
    exceptions = []
    monkeypatch.setattr(threading, "excepthook", exceptions.append)
    before_mb = memory_mb()
    attempts = [Attempt(kind, make) for kind in [*KINDS][::every]]
    try:
        wait_for(lambda: memory_mb() > before_mb + 500 or all(one.is_finished for one in attempts))
        grown_mb = memory_mb() - before_mb
        stopped = [attempt.kind for attempt in attempts if attempt.target._client._thread is None]
        for attempt in attempts:
            attempt.target.close()
    finally:
        for attempt in attempts:
            attempt.broker.close()
    assert [str(attempt.exc_value) for attempt in exceptions] == []
    assert stopped == []
    assert grown_mb < MOST_MB
    repeated = {
        attempt.kind: attempt.notices
        for attempt in attempts
        if len({*attempt.notices}) < len(attempt.notices)
    }
    assert repeated == {}
    assert all(len(attempt.notices) <= 2 for attempt in attempts), "more than a loss and a refusal"


def test_lost_connection_is_reported_again_if_it_was_steady(monkeypatch, notices):
    monkeypatch.setattr(mqtt, "STEADY_S", 0.0)
    with hostile_broker("leaves after its greeting") as broker:
        target = MqttTarget(f"mqtt://127.0.0.1:{broker.port}/x", notice=notices.append)
        wait_for(lambda: len(notices) > 1)
        began = time.monotonic()
        target.close()
    assert time.monotonic() - began < 30
    assert all("retrying" in line for line in notices)


def test_refusal_after_a_lost_connection_is_reported_once(notices):
    """The refusal says what to fix, so a connection that is lost later is not reported."""
    failure = SimpleNamespace(is_failure=True)
    with hostile_broker("leaves at once") as broker:
        target = MqttTarget(f"mqtt://127.0.0.1:{broker.port}/x", notice=notices.append)
        wait_for(lambda: notices)
        for _ in range(2):
            target._on_connect(None, None, None, failure, None)
            target._on_disconnect(None, None, None, failure, None)
        target.close()
    assert ["refused the" in line for line in notices] == [False, True]
