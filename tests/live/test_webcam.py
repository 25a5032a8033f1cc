"""Test webcams on a fake device.

What cv2's own VideoCapture does with a real device is not tested here.
"""

from __future__ import annotations

import threading
import time
from fractions import Fraction
from typing import Any

import cv2
import numpy as np

from detector.core.errors.addresses import Address
from detector.live.sources.base import ENDED, LIVE, STALLED, WAITING, WEBCAM, Camera, Feed, Terms
from detector.live.sources.status import Backoff, Status
from detector.live.sources.webcam import WebcamFeed
from tests.waiting import PATIENCE_S, wait_for


class Device:
    def __init__(self) -> None:
        self.opened: list[int | str] = []
        self.settings: dict[int, float] = {}
        self.absent = False
        self.pictures = 10**9
        self.released = 0
        self.number = 0

    def open(self, device: int | str) -> Device:
        self.opened.append(device)
        return self

    def isOpened(self) -> bool:  # noqa: N802
        return not self.absent

    def set(self, prop: int, value: float) -> bool:
        self.settings[prop] = value
        return True

    def grab(self) -> bool:
        time.sleep(0.002)
        self.pictures -= 1
        self.number += 1
        return self.pictures >= 0

    def retrieve(self) -> tuple[bool, Any]:
        return True, np.full((4, 6, 3), self.number % 256, np.uint8)

    def release(self) -> None:
        self.released += 1


def webcam(device: Device, spec: str = "0", status: Status | None = None, **more: Any) -> Feed:
    camera = Camera("cam0", WEBCAM, Address(spec), **more)
    feed = WebcamFeed(camera, Terms(), status=status)
    feed.open_capture = device.open
    return feed


def test_webcam_gets_the_requested_size_and_rate() -> None:
    device = Device()
    feed = webcam(device, "/dev/video7", size=(1280, 720), rate=15)
    feed.start()
    wait_for(lambda: feed.waiting())
    picture = feed.take()
    assert picture is not None
    image = feed.convert(picture, np.empty((4, 6, 3), np.uint8))
    assert (image.shape, image[0, 0, 0]) == ((4, 6, 3), (picture.number + 1) % 256)
    assert (picture.width, picture.height, picture.arrival.epoch) == (6, 4, 1)
    arrived_s = Fraction(picture.arrival.arrived_ns, 10**9)
    assert 0 <= arrived_s - picture.pts * picture.time_base < 1e-6
    assert feed.facts().state == LIVE
    assert feed.stop(PATIENCE_S)
    assert device.opened == ["/dev/video7"]
    assert device.settings[cv2.CAP_PROP_FRAME_WIDTH] == 1280
    assert device.settings[cv2.CAP_PROP_FPS] == 15
    facts = feed.facts()
    assert facts.state == ENDED
    assert facts.received == facts.taken + sum(facts.dropped.values())
    assert device.released == 1


def test_lost_device_is_reported_and_opened_again() -> None:
    device = Device()
    now = [0]
    lock = threading.Lock()

    def clock() -> int:
        with lock:  # each time that the feed reads the clock, it advances by 0.4 s
            now[0] += 0 if threading.current_thread() is threading.main_thread() else 400_000_000
            return now[0]

    feed = webcam(device, status=Status(0, Backoff(lambda: 0.5)))
    feed.clock = clock  # type: ignore[attr-defined]
    device.pictures = 5

    def plug_in(spec: int | str) -> Device:
        if device.opened:  # the second opening
            device.pictures = 10**9  # set here, since the test's thread might be too late
        return device.open(spec)

    feed.open_capture = plug_in  # type: ignore[attr-defined]
    states = set()
    feed.wake = lambda: states.add(feed.facts().state)  # type: ignore[attr-defined]
    feed.start()
    wait_for(lambda: feed.facts().connects == 2)
    assert {LIVE, STALLED, WAITING} <= states
    assert feed.stop(PATIENCE_S)
    assert len(device.opened) == 2
    assert feed.facts().stalls == 1
