"""After the first frames, preprocess and annotate allocate no large numpy buffer."""

import numpy as np
import pytest

from detector.core.stages.annotate import annotate
from detector.core.stages.preprocess import letterbox
from detector.core.types import Detections
from tests.memory import bytes_of

LIMIT_BYTES = 64 * 1024


def growth(call):
    call()
    call()
    return bytes_of(call, times=5)[1]


def test_growth_includes_numpy_buffers():
    assert growth(lambda: np.empty((100, 1000), np.uint8).fill(0)) >= 100_000


@pytest.mark.parametrize("geometry", ["centre", "top-left-truncate", "stretch"])
def test_preprocess_allocates_no_large_buffer(geometry):
    image, slot = np.zeros((720, 1280, 3), np.uint8), np.zeros((416, 416, 3), np.uint8)
    assert growth(lambda: letterbox(image, slot, geometry=geometry)) < LIMIT_BYTES


def test_annotate_allocates_no_large_buffer():
    image = np.zeros((720, 1280, 3), np.uint8)
    boxes = np.random.default_rng(0).uniform(0, 600, (50, 2)).astype(np.float32)
    detections = Detections(
        np.concatenate([boxes, boxes + 100], axis=1),
        np.full(50, 0.5, np.float32),
        np.arange(50) % 3,
        ("a", "b", "c"),
    )
    # Fifty labels need many small buffers, so the limit here is 256 KB for all buffers together.
    assert growth(lambda: annotate(image, detections)) < 4 * LIMIT_BYTES
