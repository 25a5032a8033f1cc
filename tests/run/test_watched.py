"""A watcher of a run: only the pictures that it wants are drawn."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from detector.core.config.schema import Config, InputConfig, OutputConfig
from detector.core.run.detect import Hooks, detect
from tests.conftest import CHECKOUT

STREET = str(CHECKOUT / "videos/street.mp4")


class EverySecondFrame:
    """A watcher that wants the first, third ... picture, and records the pictures that it gets."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.pictures: list[np.ndarray] = []
        self.counts: list[int] = []

    def wants_pictures(self, camera: str) -> bool:
        self.requests.append(camera)
        return len(self.requests) % 2 == 1

    def show(self, frame, detections) -> None:
        self.pictures.append(frame.image.copy())
        self.counts.append(len(detections))


@pytest.mark.slow
@pytest.mark.parametrize("sync", [False, True])
def test_picture_is_drawn_only_if_the_watcher_wants_it(tmp_path, sync):
    output = OutputConfig(output=f"{tmp_path}/", no_video=True, run_dir=str(tmp_path / "run"))
    config = Config(input=InputConfig(frames=4), output=output)
    config = replace(config, loop=replace(config.loop, sync=sync))
    watcher = EverySecondFrame()
    result = detect([STREET], config, hooks=Hooks(watcher=watcher))
    assert result.exit_code == 0
    assert watcher.requests == [STREET] * 4
    assert min(watcher.counts) > 0
    video = cv2.VideoCapture(STREET)
    drawn = [not np.array_equal(shown, video.read()[1]) for shown in watcher.pictures]
    assert drawn == [True, False, True, False]
