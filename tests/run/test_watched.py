"""A watcher of an ordinary run: only the pictures that it watches are drawn."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from detector.core.config.schema import Config, InputConfig, OutputConfig
from detector.core.run.detect import Hooks, detect
from tests.conftest import CHECKOUT

STREET = str(CHECKOUT / "videos/street.mp4")


class EverySecond:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pictures: list[np.ndarray] = []
        self.found: list[int] = []

    def wants_pictures(self, camera: str) -> bool:
        self.asked.append(camera)
        return len(self.asked) % 2 == 1

    def show(self, frame, detections) -> None:
        self.pictures.append(frame.image.copy())
        self.found.append(len(detections))


def source_pictures(count: int) -> list[np.ndarray]:
    video = cv2.VideoCapture(STREET)
    pictures = [video.read()[1] for _ in range(count)]
    video.release()
    return pictures


@pytest.mark.slow
@pytest.mark.parametrize("sync", [False, True])
def test_a_picture_is_drawn_where_somebody_looks(tmp_path, sync):
    output = OutputConfig(output=f"{tmp_path}/", no_video=True, run_dir=str(tmp_path / "run"))
    config = Config(input=InputConfig(frames=4), output=output)
    config = replace(config, loop=replace(config.loop, sync=sync))
    watcher = EverySecond()
    result = detect([STREET], config, hooks=Hooks(watcher=watcher))
    assert result.exit_code == 0
    assert watcher.asked == [STREET] * 4
    assert min(watcher.found) > 0
    drawn = [
        not np.array_equal(seen, raw)
        for seen, raw in zip(watcher.pictures, source_pictures(4), strict=True)
    ]
    assert drawn == [True, False, True, False]
