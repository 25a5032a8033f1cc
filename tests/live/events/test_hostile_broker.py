"""Brokers that lie, flood or leave. ``scripts/live_check broker`` tries them on whole runs."""

from __future__ import annotations

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
MOST_MB = 60  # of all at once; one that fills the memory costs hundreds


def memory_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


class Tried:
    """An event target with an event to send to a broker of one kind."""

    def __init__(self, kind: str, make: Callable[..., MqttTarget]) -> None:
        self.kind, self.said, self.broker = kind, [], HostileBroker(kind)
        self.target = make(f"mqtt://127.0.0.1:{self.broker.port}/x", notice=self.notice)
        self.target.send(Event("camera_up", "door", 1.0, 1.0))

    def notice(self, line: str) -> None:
        self.said.append(line)

    @property
    def is_through(self) -> bool:
        """Return whether there were enough attempts for a second line to have been printed."""
        if self.kind in PATIENT:
            return self.broker.connections == 1
        return bool(self.said) and (self.broker.connections > 2 or self.broker.is_gone)


@pytest.mark.parametrize("every", [3, night(1)])
@pytest.mark.parametrize("make", [MqttTarget, partial(HomeAssistant, prefix="ha")])
def test_hostile_brokers_neither_stop_events_nor_fill_memory(monkeypatch, make, every):
    monkeypatch.setattr(mqtt, "LONGEST_PAUSE_S", 1)
    died = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    before_mb = memory_mb()
    tried = [Tried(kind, make) for kind in [*KINDS][::every]]
    try:
        wait_for(
            lambda: all(broker.is_through or memory_mb() - before_mb > 500 for broker in tried)
        )
        grown_mb = memory_mb() - before_mb
        running = [one.kind for one in tried if one.target._client._thread is None]
        for one in tried:
            one.target.close()
    finally:
        for one in tried:
            one.broker.close()
    assert [str(one.exc_value) for one in died] == []
    assert running == []
    assert grown_mb < MOST_MB
    twice = {one.kind: one.said for one in tried if len({*one.said}) < len(one.said)}
    assert twice == {}
    assert all(len(one.said) <= 2 for one in tried), "it broke off, and refused"


def test_broker_that_leaves_after_a_steady_time_is_reported_again(monkeypatch):
    monkeypatch.setattr(mqtt, "STEADY_S", 0.0)
    said: list[str] = []
    with hostile_broker("leaves after its greeting") as broker:
        target = MqttTarget(f"mqtt://127.0.0.1:{broker.port}/x", notice=said.append)
        wait_for(lambda: len(said) > 1)
        began = time.monotonic()
        target.close()
    assert time.monotonic() - began < 30
    assert all("retrying" in line for line in said)


def test_refusal_after_a_lost_connection_is_reported_once():
    """The refusal says what to fix. A connection that breaks after it is not reported."""
    failure = SimpleNamespace(is_failure=True)
    said: list[str] = []
    with hostile_broker("leaves at once") as broker:
        target = MqttTarget(f"mqtt://127.0.0.1:{broker.port}/x", notice=said.append)
        wait_for(lambda: said)
        for _ in range(2):
            target._on_connect(None, None, None, failure, None)
            target._on_disconnect(None, None, None, failure, None)
        target.close()
    assert ["refused the" in line for line in said] == [False, True]
