"""Raw outputs and detections against another implementation (OpenCV's DNN, made elsewhere)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.known_answers import run_once
from tests.networks import open_network

# The reference folds batch normalisation with eps 1e-6, darknet and we with 1e-5: 1e-3, not 1e-6.
BOXES, SCORES = 2e-3, 1e-3
CASES = [
    ("yolo-fastest-1.1", None, "yolo-fastest-1.1_reference.npz"),
    ("yolov4-tiny-person-vehicle", 7, "yolov4-tiny-person-vehicle-random7_reference.npz"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed", "reference"), CASES)
def test_dense_decode_of_the_raw_heads_equals_the_reference(shared, name, seed, reference):
    """The reference holds boxes relative to 1 and objectness x class."""
    folder = shared / "data/weights"
    network = open_network(str(folder / f"{name}.cfg"), random_seed=seed)
    with np.load(folder / reference) as stored:
        pictures = stored["input"].transpose(0, 2, 3, 1)
        wanted = np.concatenate([stored[key] for key in stored.files if key.startswith("output")])
    outputs = {engine: run_once(network, pictures, engine) for engine in ("ort", "torch")}
    for raw in outputs.values():
        found = network.dense(raw)[0]
        found[:, :4] /= [network.input.width, network.input.height] * 2
        found[:, 5:] *= found[:, 4:5]
        np.testing.assert_allclose(found[:, :4], wanted[:, :4], rtol=BOXES, atol=BOXES * 1e-3)
        np.testing.assert_allclose(found[:, 4:], wanted[:, 4:], rtol=0, atol=SCORES)
    for one, other in zip(outputs["ort"], outputs["torch"], strict=True):
        assert np.abs(one).max() > 1
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed", "reference"), CASES)
def test_the_sparse_head_finds_what_the_dense_one_holds(shared, name, seed, reference):
    folder = shared / "data/weights"
    network = open_network(str(folder / f"{name}.cfg"), random_seed=seed)
    with np.load(folder / reference) as stored:
        raw = run_once(network, stored["input"].transpose(0, 2, 3, 1))
    dense = network.dense(raw)[0]
    scores = dense[:, 4] * dense[:, 5:].max(axis=1)
    rows = dense[scores >= 0.25]
    found = network.head(raw, 0.25)
    assert len(rows) > 10
    np.testing.assert_allclose(found.scores, scores[scores >= 0.25], rtol=1e-6)
    np.testing.assert_array_equal(found.class_ids, rows[:, 5:].argmax(axis=1))
    np.testing.assert_allclose(
        (found.boxes[:, :2] + found.boxes[:, 2:]) / 2, rows[:, :2], atol=1e-3
    )
    np.testing.assert_allclose(
        found.boxes[:, 2:] - found.boxes[:, :2], rows[:, 2:4], rtol=1e-4, atol=1e-3
    )
