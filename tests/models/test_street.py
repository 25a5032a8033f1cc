"""The packaged model street: its files, its input and what it detects."""

import json
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector import Detector
from detector.core.analysis import matching
from detector.core.config.schema import Config
from detector.core.errors import ModelError
from detector.core.models import catalogue
from detector.core.models.formats.darknet.cfg import parse_cfg
from detector.core.models.formats.darknet.layers import read_architecture
from detector.core.models.formats.darknet.weights import read_weights
from detector.lab.analysis.accuracy import average_precision as ap
from tests.networks import open_network

ROOT = Path(__file__).parents[2]
TINY = (
    "[net]\nwidth=8\nheight=8\n{}[convolutional]\nfilters=7\nactivation=linear\n"
    "[yolo]\nanchors=4,4\nclasses=2\n"
)


def test_the_default_model_is_in_the_package_and_small():
    assert Config().network.model == "street"
    entry = catalogue.known_model("street")
    assert entry.weights is not None
    assert entry.weights.stat().st_size <= 4_000_000
    network = open_network("street")
    assert network.parameters <= 1_500_000
    assert network.names == ("person", "vehicle")
    assert network.warnings == []


def test_weights_do_not_depend_on_the_input_size():
    network = open_network("street", size=(416, 416), batch=3)
    assert network.input_shape == (3, 416, 416, 3)


@pytest.mark.parametrize(
    ("key", "geometry"),
    [("", "stretch"), ("letter_box=0\n", "stretch"), ("letter_box=1\n", "centre")],
)
def test_key_letter_box_of_a_cfg_decides_the_geometry(tmp_path, key, geometry):
    (tmp_path / "t.cfg").write_text(TINY.format(key))
    rules = open_network(str(tmp_path / "t.cfg"), random_seed=1).input
    assert rules.geometry == geometry


def test_half_floats_are_read(tmp_path):
    plan = read_architecture(parse_cfg(TINY.format(""), "t.cfg")[0])
    values = np.linspace(-1, 1, 28).astype("<f2")
    (tmp_path / "t.f16").write_bytes(struct.pack("<3iq", 0, 2, 5, 0) + values.tobytes())
    filters = read_weights(tmp_path / "t.f16", plan)
    assert filters[0].biases.dtype == np.float32
    np.testing.assert_array_equal(filters[0].biases, values[:7].astype(np.float32))
    (tmp_path / "t.f16").write_bytes((tmp_path / "t.f16").read_bytes()[:-2])
    with pytest.raises(ModelError, match="28 floats, this file has 27"):
        read_weights(tmp_path / "t.f16", plan)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch"])
def test_street_detects_most_of_its_clip(engine):
    """Run the default model on every 50th frame of the clip."""
    pytest.importorskip("onnxruntime" if engine == "ort" else "torch")
    document = json.loads((ROOT / "videos/street.json").read_text())
    labels = [row for row in document["annotations"] if not row["iscrowd"]]
    capture, judged = cv2.VideoCapture(str(ROOT / "videos/street.mp4")), []
    with Detector(engine=engine) as detector:
        for index in range(250):
            capture.grab()
            if index % 50:
                continue
            found = detector(capture.retrieve()[1])
            for class_id in (0, 1):
                expected = [
                    r["bbox"]
                    for r in labels
                    if r["image_id"] == index + 1 and r["category_id"] == class_id + 1
                ]
                boxes = np.array(expected, float).reshape(-1, 4)
                boxes[:, 2:] += boxes[:, :2]
                none = np.zeros(len(boxes), bool)
                mine = found.class_ids == class_id
                truth = matching.Truth(boxes, none, none)
                judged.append(matching.judge(found.boxes[mine], found.scores[mine], truth))
    assert ap.recall(judged) > 0.6
    assert ap.precision(judged) > 0.6
