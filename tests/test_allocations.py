"""Steady state: no numpy buffer larger than 64 KB is made per frame by preprocess or annotate."""

import itertools

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


def test_the_measure_sees_a_numpy_buffer():
    assert growth(lambda: np.empty((100, 1000), np.uint8).fill(0)) >= 100_000


def test_what_another_thread_takes_beside_two_calls_is_not_the_calls():
    sizes = itertools.chain([0, 0, 0, 1 << 20, 0, 1 << 20], itertools.repeat(0))
    assert growth(lambda: bytes(next(sizes))) < LIMIT_BYTES


@pytest.mark.parametrize("geometry", ["centre", "top-left-truncate", "stretch"])
def test_preprocess(geometry):
    image, slot = np.zeros((720, 1280, 3), np.uint8), np.zeros((416, 416, 3), np.uint8)
    assert growth(lambda: letterbox(image, slot, geometry=geometry)) < LIMIT_BYTES


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
    assert growth(lambda: annotate(image, found)) < 4 * LIMIT_BYTES
