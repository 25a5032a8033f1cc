"""Outputs that are neither lists nor rows are refused, with advice on the export."""

from __future__ import annotations

import numpy as np
import pytest

from detector.core.errors import ModelError
from tests.models.exports import Export
from tests.models.test_onnx_evidence import FRACTIONS, LIST, described, labels, red
from tests.models.test_onnx_families import BOTH, detect
from tests.networks import open_network


def convolve(export: Export, x: str, inputs: int, outputs: int, stride: int) -> str:
    weights = export.const(np.random.default_rng(outputs).normal(0, 0.1, (outputs, inputs, 3, 3)))
    sides = {"kernel_shape": [3, 3], "strides": [stride, stride], "pads": [1, 1, 1, 1]}
    return export.add("Conv", x, weights, **sides)


def pyramid(export: Export, levels: int) -> list[str]:
    """Maps [1, 8, h, w] of strides 8, 16 ..."""
    x, maps = export.picture, []
    for at in range(levels + 2):
        x = export.add("Relu", convolve(export, x, 8 if at else 3, 8, 2))
        maps.append(x)
    return maps[2:]


def maps(channels: int, levels: int = 3) -> Export:
    export = Export()
    for at, x in enumerate(pyramid(export, levels)):
        export.out(f"output{at}", convolve(export, x, 8, channels, 1))
    return export


def test_refusal_of_raw_maps_says_how_to_export_them(tmp_path):
    """YOLOv7 without --grid has maps [1, 255, h, w], and YOLOv8 for NPUs [1, 144, h, w]."""
    for channels in (255, 144):
        path = maps(channels).save(tmp_path / f"{channels}.onnx")
        with pytest.raises(ModelError, match=r"these are raw maps.*--grid"):
            open_network(path)


def detection_output(**more) -> Export:
    """Caffe's DetectionOutput [1, 1, K, 7]: picture, class from 1, score, corners in 0..1."""
    export = Export(**more)
    zero = export.table(export.colours(), [(0.0,)], LIST)
    boxes = export.table(export.colours(), FRACTIONS, LIST)
    rows = export.add("Concat", zero, labels(export, (7, 15)), red(export), boxes, axis=2)
    return export.out("detection_out", export.add("Unsqueeze", rows, export.ints(1)))


DETECTION_OUTPUT = """
family: mobilenet-ssd
input: {fit: stretch}
outputs:
  boxes: {tensor: detection_out, columns: 3-6, unit: fraction}
  scores: {tensor: detection_out, columns: 2}
  classes: {tensor: detection_out, column: 1, first: 1}
  nms: inside
"""


def test_caffe_detection_output_is_refused_unless_described(tmp_path):
    path = detection_output().save(tmp_path / "ssd.onnx")
    with pytest.raises(ModelError, match="its family was not recognised"):
        open_network(path)
    description = described(tmp_path, DETECTION_OUTPUT)
    found = detect(path, describe=str(description))
    assert [row[2] for row in found] == BOTH
    assert [row[0] for row in found] == ["train", "bird"]
