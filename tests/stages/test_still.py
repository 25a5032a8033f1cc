"""Which frames count as still, and which detections they repeat."""

import numpy as np
import pytest

from detector.core.errors import UsageError
from detector.core.stages.still import LEVELS, Stillness, parse_share
from detector.core.types import Arrival, Detections, Frame, Letterbox

FIT = Letterbox(1, 1, 0, 0, 64, 32)


def frame(camera: str | None = None, epoch: int = 1) -> Frame:
    arrival = None if camera is None else Arrival(camera, epoch, 0, 0.0)
    return Frame(0, 0, 0.0, np.zeros((32, 64, 3), np.uint8), arrival=arrival)


def slot(value: int = 100, changed: int = 0) -> np.ndarray:
    image = np.full((32, 64, 3), value, np.uint8)
    for number in range(changed):
        y, x = divmod(number, 16)
        image[4 * y : 4 * y + 4, 4 * x : 4 * x + 4] = value + LEVELS + 1
    return image


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.5%", 0.005), ("0.005", 0.005), ("0%", 0.0), ("12%", 0.12), (" 1% ", 0.01)],
)
def test_share_is_parsed(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "100%", "1", "-1%", "5 %", "half", "1e-3", "nan", "٥%"])
def test_invalid_share_is_refused(text):
    with pytest.raises(UsageError, match="give a share"):
        parse_share(text)


def test_change_is_counted_in_cells():
    still = Stillness(2 / 128)
    assert not still.is_still(frame(), slot(), FIT)
    assert still.is_still(frame(), slot(), FIT)
    assert still.is_still(frame(), slot(changed=2), FIT)
    assert not still.is_still(frame(), slot(changed=3), FIT)
    assert not still.is_still(frame(), slot(), FIT)  # three cells change back


def test_change_of_one_channel_counts():
    still = Stillness(0.0)
    still.is_still(frame(), slot(), FIT)
    red = slot()
    red[:4, :4, 0] += LEVELS + 1
    assert not still.is_still(frame(), red, FIT)


def test_camera_noise_is_not_a_change():
    still, random = Stillness(0.0), np.random.default_rng(0)
    for number in range(50):
        noisy = np.clip(slot() + random.normal(0, 4, (32, 64, 3)), 0, 255).astype(np.uint8)
        assert still.is_still(frame(), noisy, FIT) == (number > 0)


def test_slow_change_adds_up_since_the_last_inferred_frame():
    still = Stillness(0.0)
    inferred = [value for value in range(0, 60) if not still.is_still(frame(), slot(value), FIT)]
    assert inferred == list(range(0, 60, LEVELS + 1))


def test_tiled_frame_is_compared_by_its_whole_picture():
    still = Stillness(0.0)
    assert not still.is_still(frame(), np.stack([slot(1), slot(1)]), FIT)
    assert still.is_still(frame(), np.stack([slot(1), slot(200)]), FIT)
    assert not still.is_still(frame(), np.stack([slot(200), slot(1)]), FIT)


def test_frames_of_other_cameras_or_connections_or_letterboxes_are_not_compared():
    still = Stillness(0.0)
    assert not still.is_still(frame("a"), slot(1), FIT)
    assert not still.is_still(frame("b"), slot(1), FIT)
    assert still.is_still(frame("a"), slot(1), FIT)
    assert not still.is_still(frame("a", epoch=2), slot(1), FIT)
    assert not still.is_still(frame("a", epoch=2), slot(1), Letterbox(2, 2, 0, 0, 32, 16))
    detections = {name: Detections.empty((name,)) for name in "ab"}
    for name in "ab":
        still.remember(frame(name), detections[name])
    assert still.recall(frame("a")) is detections["a"]
    assert still.recall(frame("b")) is detections["b"]
