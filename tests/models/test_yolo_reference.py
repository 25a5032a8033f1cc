"""Decoded outputs of YOLOv5n and YOLOv7-tiny equal those of the original code (REFERENCE.md)."""

import numpy as np
import pytest

from detector.core import engines
from tests.known_answers import run_once
from tests.networks import need_engine, open_network

CASES = [  # boxes may differ by 1e-3 of the input's size, scores by 1e-4
    ("yolov5n", "yolov5n_reference.npz", "input_320", "output_320"),
    ("yolov5n", "yolov5n_reference.npz", "input_640x384", "output_640x384"),
    ("yolov7-tiny-random", "yolov7-tiny-random_reference.npz", "input", "output"),
]
COMPUTING = [name for name in engines.names() if name != "null"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", COMPUTING)
@pytest.mark.parametrize(("name", "reference", "input_key", "output_key"), CASES)
def test_decoded_outputs_equal_reference(shared, name, reference, input_key, output_key, engine):
    need_engine(engine)
    folder = shared / "data/weights"
    with np.load(folder / reference) as stored:
        picture, expected_rows = stored[input_key], stored[output_key]
    network = open_network(str(folder / f"{name}.pt"), size=picture.shape[2:])
    raw = run_once(network, picture.transpose(0, 2, 3, 1), engine)
    assert [output.shape for output in raw] == network.output_shapes
    rows = network.dense(raw)
    assert rows.shape == expected_rows.shape
    np.testing.assert_allclose(
        rows[..., :4], expected_rows[..., :4], rtol=0, atol=1e-3 * max(picture.shape[2:])
    )
    np.testing.assert_allclose(rows[..., 4:], expected_rows[..., 4:], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_reference_checkpoints_have_known_facts(shared):
    one = open_network(str(shared / "data/weights/yolov5n.pt"), size=(64, 64))
    assert (one.family, one.parameters, one.parameters_fused) == ("yolov5", 1_872_157, 1_867_405)
    assert (one.names[0], one.names[3], len(one.names)) == ("person", "motorcycle", 80)
    assert (one.input.geometry, one.input.stride, one.input.pad_value) == ("centre", 32, 114)
    assert open_network(str(shared / "data/weights/yolov5n.pt")).input_shape == (1, 640, 640, 3)
    two = open_network(str(shared / "data/weights/yolov7-tiny-random.pt"), size=(64, 64))
    assert (two.family, two.parameters, two.parameters_fused) == ("yolov7", 6_228_762, 6_219_709)
    assert one.warnings == two.warnings == []
