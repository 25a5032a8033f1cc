"""Outputs that are neither lists nor rows are refused by their kind, with advice on the export."""

from __future__ import annotations

import numpy as np
import pytest

from detector.core.errors import ModelError
from tests.models.exports import BOXES, Export
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


def yolov5_maps() -> Export:
    """Make [1, 3, h, w, 5 + 80] for three strides, as the model in training mode does."""
    export = Export()
    names = zip(("output0", "350", "498"), pyramid(export, 3), (8, 4, 2), strict=True)
    for name, x, side in names:
        shape = export.ints(1, 3, 85, side, side)
        apart = export.add("Reshape", convolve(export, x, 8, 255, 1), shape)
        export.out(name, export.add("Transpose", apart, perm=[0, 1, 3, 4, 2]))
    return export


def maps(channels: int, levels: int = 3) -> Export:
    export = Export()
    for at, x in enumerate(pyramid(export, levels)):
        export.out(f"output{at}", convolve(export, x, 8, channels, 1))
    return export


def levels() -> Export:
    """EfficientDet: five maps of 9 x 90 classes and of 9 x 4 sides."""
    export = Export()
    found = pyramid(export, 5)
    for name, channels in (("class", 810), ("box", 36)):
        for at, x in enumerate(found):
            export.out(f"{name}{at}", convolve(export, x, 8, channels, 1))
    return export


def flat(counts: dict[str, int]) -> Export:
    export = Export()
    for name, count in counts.items():
        table = export.table(export.colours(), [(0.0,)], count)
        export.out(name, export.add("Reshape", table, export.ints(1, -1)))
    return export


def rotated() -> Export:
    """YOLOv8-obb with its NMS: box, score, class, angle."""
    export, rows = Export(), 300
    colours = export.colours()
    parts = [
        export.table(colours, BOXES, rows),
        red(export, rows),
        export.table(colours, [(1.0,), (2.0,)], rows),
        export.table(colours, [(0.3,), (0.4,)], rows),
    ]
    return export.out("output0", export.add("Concat", *parts, axis=2))


REFUSED = {
    # case: file, graph, message
    "YOLOv5 as it trains": ("yolov5s", yolov5_maps, "raw maps of YOLOv3 to YOLOv7.*eval mode"),
    "YOLOv7 without --grid": ("best", lambda: maps(255), "raw maps of YOLOv3 to YOLOv7.*--grid"),
    "YOLOv8 for NPUs": ("yolov8n", lambda: maps(144), "maps of YOLOv8 or later.*format=onnx"),
    "EfficientDet": ("d0", levels, "raw levels of EfficientDet or RetinaNet.*DetBenchPredict"),
    "SSD of Caffe": (
        "mobilenet",
        lambda: flat({"mbox_loc": 4 * 30, "mbox_conf_flatten": 21 * 30}),
        "raw offsets and scores of an SSD.*with its detections",
    ),
    "rotated boxes": ("yolov8n-obb", rotated, "rotated boxes.*whose task is detect"),
    "maps of no kind": ("net", lambda: maps(7, 2), "raw maps, and nothing says what their boxes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_names_the_kind_and_how_to_export_it(tmp_path, case):
    name, make, advice = REFUSED[case]
    path = make().save(tmp_path / f"{name}.onnx")
    with pytest.raises(ModelError, match=f"these are .*{advice}"):
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
    with pytest.raises(ModelError, match=r"detection_out columns 3-6 \(xyxy, "):
        open_network(path)
    description = described(tmp_path, DETECTION_OUTPUT)
    found = detect(path, describe=str(description))
    assert [row[2] for row in found] == BOTH
    assert [row[0] for row in found] == ["train", "bird"]
