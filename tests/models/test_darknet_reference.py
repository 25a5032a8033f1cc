"""Decoded outputs agree with another implementation, OpenCV's DNN."""

import numpy as np
import pytest

from tests.known_answers import run_once
from tests.networks import open_network

# Tolerances. The reference folds batch norm with eps 1e-6, but darknet and we with 1e-5.
BOXES, SCORES = 2e-3, 1e-3
CASES = [
    ("yolo-fastest-1.1", None, "yolo-fastest-1.1_reference.npz"),
    ("yolov4-tiny-person-vehicle", 7, "yolov4-tiny-person-vehicle-random7_reference.npz"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed", "reference"), CASES)
def test_boxes_decoded_from_all_cells_equal_the_reference(shared, name, seed, reference):
    """The reference holds boxes in 0..1, and objectness x class probability."""
    folder = shared / "data/weights"
    network = open_network(str(folder / f"{name}.cfg"), random_seed=seed)
    with np.load(folder / reference) as stored:
        pictures = stored["input"].transpose(0, 2, 3, 1)
        expected = np.concatenate([stored[key] for key in stored.files if key.startswith("output")])
    outputs = {engine: run_once(network, pictures, engine) for engine in ("ort", "torch")}
    for raw in outputs.values():
        rows = network.dense(raw)[0]
        rows[:, :4] /= [network.input.width, network.input.height] * 2
        rows[:, 5:] *= rows[:, 4:5]
        np.testing.assert_allclose(rows[:, :4], expected[:, :4], rtol=BOXES, atol=BOXES * 1e-3)
        np.testing.assert_allclose(rows[:, 4:], expected[:, 4:], rtol=0, atol=SCORES)
    for one, other in zip(outputs["ort"], outputs["torch"], strict=True):
        assert np.abs(one).max() > 1
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)
