"""Steady state: no numpy buffer larger than 64 KB is made per frame by preprocess, infer or
annotate.
"""

import tracemalloc

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.stages.annotate import annotate
from detector.core.stages.preprocess import letterbox
from detector.core.types import Detections
from tests.networks import open_network

LIMIT_BYTES = 64 * 1024


def largest_growth(call, times=5):
    """Peak of the traced memory above its start, over some calls; numpy and cv2's numpy arrays are
    traced.
    """
    call()
    call()
    tracemalloc.start()
    try:
        growth = 0
        for _ in range(times):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            call()
            growth = max(growth, tracemalloc.get_traced_memory()[1] - before)
        return growth
    finally:
        tracemalloc.stop()


def test_the_measure_sees_a_numpy_buffer():
    assert largest_growth(lambda: np.empty((100, 1000), np.uint8).fill(0)) >= 100_000


@pytest.mark.parametrize("geometry", ["centre", "top-left-truncate", "stretch"])
def test_preprocess(geometry):
    image, slot = np.zeros((720, 1280, 3), np.uint8), np.zeros((416, 416, 3), np.uint8)
    assert largest_growth(lambda: letterbox(image, slot, geometry=geometry)) < LIMIT_BYTES


def test_annotate():
    image = np.zeros((720, 1280, 3), np.uint8)
    boxes = np.random.default_rng(0).uniform(0, 600, (50, 2)).astype(np.float32)
    found = Detections(
        np.concatenate([boxes, boxes + 100], axis=1),
        np.full(50, 0.5, np.float32),
        np.arange(50) % 3,
        ("a", "b", "c"),
    )
    # All small buffers of placing fifty labels together; none of them alone is above 64 KB.
    assert largest_growth(lambda: annotate(image, found)) < 4 * LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", engines.names())
def test_infer(name):
    if reason := engines.usable()[name]:
        pytest.skip(f"machine: engine {name}: {reason}")
    network = open_network("yolov4-tiny-person-vehicle", random_seed=0)
    with engines.open(name, network, EngineOptions(requests=1)) as engine:
        request = engine.requests[0]
        assert largest_growth(lambda: request.infer(1)) < LIMIT_BYTES
