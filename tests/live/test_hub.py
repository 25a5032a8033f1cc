"""Test the pictures and events that the hub gives to viewers, on a clock that the test moves."""

import cv2
import numpy as np
import pytest

from detector.core.types import Detections
from detector.live.base import APPEARS, CAMERA_DOWN, Event
from detector.live.hub import EVENTS_KEPT, EVENTS_WAITING, FORGOTTEN_AFTER_NS, Hub, fit_width
from tests.live.fake_feeds import Clock
from tests.live.page.fake_run import frame, picture

NOTHING = Detections.empty()


def show_next(hub: Hub, camera: str = "door", number: int = 0) -> bool:
    is_wanted = hub.wants_pictures(camera)
    hub.show(frame(camera, picture(number), number), NOTHING)
    return is_wanted


def decoded(data: bytes):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


def test_hub_without_viewers_copies_and_encodes_nothing():
    hub = Hub()
    assert [show_next(hub, number=i) for i in range(5)] == [False] * 5
    assert hub.newest("door") is None
    assert hub.jpeg("door") is None
    assert hub.encoded == 0


def test_each_request_gets_only_one_picture():
    hub = Hub()
    before = hub.request_picture("door")
    assert [show_next(hub, number=i) for i in range(3)] == [True, False, False]
    newest = hub.newest("door")
    assert newest is not None
    assert newest.number == before + 1
    assert not show_next(hub, "gate")  # the request was for "door"


def test_picture_is_encoded_once_for_each_width():
    hub = Hub()
    watch = hub.watch(["door"])
    show_next(hub)
    answers = [hub.jpeg("door", width) for width in (100, 320, 200, None, 5000, None)]
    # 320 is the picture's own width, and the smallest width of scaled pictures.
    assert hub.encoded == 1
    assert len({id(data) for _, data in answers}) == 1
    hub.request_picture("door")
    hub.wants_pictures("door")
    hub.show(frame("door", picture(1, 1280, 720)), NOTHING)
    shapes = [decoded(hub.jpeg("door", width)[1]).shape for width in (200, 700, 700, None)]
    assert shapes == [(180, 320, 3), (540, 960, 3), (540, 960, 3), (720, 1280, 3)]
    assert hub.encoded == 1 + 3
    hub.leave(watch)


def test_hub_keeps_a_copy_because_the_run_reuses_the_memory():
    hub = Hub()
    hub.request_picture("door")
    hub.wants_pictures("door")
    image = picture(0)
    hub.show(frame("door", image), NOTHING)
    image[:] = 0
    assert hub.newest("door").image.any()


def test_picture_is_kept_only_if_wants_pictures_was_called_first():
    """Otherwise nothing was drawn on the picture, and it could show what --blur should hide."""
    hub = Hub()
    hub.request_picture("door")
    hub.show(frame("door", picture(0)), NOTHING)
    assert hub.newest("door") is None
    assert show_next(hub)  # the request is still open
    hub.request_picture("door")
    hub.show(frame("door", picture(1)), NOTHING)
    assert hub.newest("door").number == 1


@pytest.mark.parametrize(
    ("fps", "rate", "shown"),
    [
        (25, 25, 25),  # a camera as fast as its viewer loses nothing
        (50, 25, 25),
        (100, 5, 5),
        (5, 25, 5),
        (30, 12.5, 12.5),  # not a divisor of the camera's rate
    ],
)
def test_pictures_come_at_the_rate_of_the_fastest_viewer(fps, rate, shown):
    clock = Clock(1_000_000_000)
    hub = Hub(clock)
    slow, fast = hub.watch(["door"], min(rate, 1)), hub.watch(["door"], rate)
    taken = 0
    for _ in range(10 * fps):
        taken += show_next(hub)
        clock.now += 1_000_000_000 // fps
    assert taken == pytest.approx(10 * shown, abs=2)
    hub.leave(fast)
    hub.leave(slow)
    assert hub.watchers() == 0
    assert not show_next(hub)


def test_jitter_loses_no_pictures():
    clock = Clock(1_000_000_000)
    hub = Hub(clock)
    hub.watch(["door"], 25)
    jitter = np.random.default_rng(3).integers(-8_000_000, 8_000_000, 250)
    taken = 0
    for i, off in enumerate(jitter):
        clock.now = 1_000_000_000 + i * 40_000_000 + int(off)
        taken += show_next(hub)
    assert taken >= 245


def test_picture_is_released_after_a_while_without_requests():
    clock = Clock(1_000_000_000)
    hub = Hub(clock)
    hub.request_picture("door")
    show_next(hub)
    clock.now += FORGOTTEN_AFTER_NS // 2
    show_next(hub)
    assert hub.newest("door") is not None
    clock.now += FORGOTTEN_AFTER_NS
    show_next(hub)
    assert hub.newest("door") is None


def test_pictures_of_ended_cameras_are_released():
    clock = Clock(1_000_000_000)
    hub = Hub(clock)
    for number in range(5):
        watch = hub.watch([f"file-{number}"])
        clock.now += 1_000_000_000
        show_next(hub, f"file-{number}")
        hub.leave(watch)
        clock.now += 2 * FORGOTTEN_AFTER_NS
    assert [hub.newest(f"file-{number}") is not None for number in range(5)] == [False] * 4 + [True]


def test_burst_wakes_the_page_once():
    hub, calls = Hub(), []
    hub.set_wake(lambda: calls.append(1))
    hub.watch(["door", "gate"])
    show_next(hub, "door")
    show_next(hub, "gate")
    hub.send(event(1))
    assert len(calls) == 1
    hub.clear_wake()
    hub.send(event(2))
    assert len(calls) == 2


def event(number: int) -> Event:
    return Event(APPEARS, "door", float(number), float(number), "person", number)


def test_slow_subscriber_loses_its_oldest_events_only():
    hub = Hub()
    slow, fast = hub.subscribe(), hub.subscribe()
    received = []
    for number in range(EVENTS_WAITING + 30):
        hub.send(event(number))
        received += [message.count for _, message in fast.take()[0]]
    assert received == list(range(EVENTS_WAITING + 30))
    waiting, lost = slow.take()
    assert lost == hub.lost() == 30
    assert [message.count for _, message in waiting] == list(range(30, EVENTS_WAITING + 30))
    hub.unsubscribe(slow)
    hub.send(event(0))
    assert slow.take() == ([], 0)


def test_new_subscriber_gets_the_latest_events():
    hub = Hub()
    for number in range(1, EVENTS_KEPT + 51):
        hub.send(event(number))
    events = hub.subscribe().take()[0]
    assert events[-1][0] == EVENTS_KEPT + 50
    again = hub.subscribe(after=EVENTS_KEPT + 49)  # a browser that reconnects
    hub.send(Event(CAMERA_DOWN, "door", 1.0, 1.0, reason="refused"))
    assert [number for number, _ in again.take()[0]] == [EVENTS_KEPT + 50, EVENTS_KEPT + 51]


@pytest.mark.parametrize(
    ("requested", "width", "expected"),
    [
        (None, 1280, 1280),
        (1, 1280, 320),
        (320, 1280, 320),
        (321, 1280, 640),
        (4000, 3840, 3840),
        (640, 500, 500),  # never enlarged
        (1920, 7680, 1920),
    ],
)
def test_requested_width_is_rounded_up_to_a_fixed_width(requested, width, expected):
    assert fit_width(requested, width) == expected
