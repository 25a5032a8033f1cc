"""The model that ships: where its files are, what its input looks like, that it sees a street."""

from __future__ import annotations

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


def test_its_weights_are_free_of_the_input_size():
    network = open_network("street", size=(416, 416), batch=3)
    assert network.input_shape == (3, 416, 416, 3)


@pytest.mark.parametrize(
    ("key", "geometry"),
    [("", "stretch"), ("letter_box=0\n", "stretch"), ("letter_box=1\n", "centre")],
)
def test_letter_box_of_a_cfg_keeps_the_shape_of_pictures(tmp_path, key, geometry):
    (tmp_path / "t.cfg").write_text(TINY.format(key))
    rules = open_network(str(tmp_path / "t.cfg"), random_seed=1).input
    assert rules.geometry == geometry


def half_file(folder: Path, numbers: int) -> Path:
    path = folder / "t.f16"
    values = np.linspace(-1, 1, numbers).astype("<f2")
    path.write_bytes(struct.pack("<3iq", 0, 2, 5, 0) + values.tobytes())
    return path


def test_half_floats_are_read(tmp_path):
    plan = read_architecture(parse_cfg(TINY.format(""), "t.cfg")[0])
    filters = read_weights(half_file(tmp_path, 28), plan)
    assert filters[0].biases.dtype == np.float32
    np.testing.assert_array_equal(
        filters[0].biases, np.linspace(-1, 1, 28).astype(np.float16)[:7].astype(np.float32)
    )
    with pytest.raises(ModelError, match="28 floats, this file has 27"):
        read_weights(half_file(tmp_path, 27), plan)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch"])
def test_it_finds_most_of_the_rendered_street(engine):
    """Run the default model on every 50th frame of the clip, on each installed engine."""
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
                wanted = [
                    r["bbox"]
                    for r in labels
                    if r["image_id"] == index + 1 and r["category_id"] == class_id + 1
                ]
                boxes = np.array(wanted, float).reshape(-1, 4)
                boxes[:, 2:] += boxes[:, :2]
                none = np.zeros(len(boxes), bool)
                mine = found.class_ids == class_id
                truth = matching.Truth(boxes, none, none)
                judged.append(matching.judge(found.boxes[mine], found.scores[mine], truth))
    assert ap.recall(judged) > 0.6
    assert ap.precision(judged) > 0.6
