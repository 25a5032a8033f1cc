"""Limits against hostile model files are at least ten times what exporters write. One environment
variable raises all of them, and every refusal names it."""

from contextlib import nullcontext

import pytest

from detector.core.errors import ModelError, UsageError
from detector.core.models.formats import MAX_FACTOR, VARIABLE, how_to_raise, raised
from detector.core.models.formats.darknet import cfg as darknet_cfg
from detector.core.models.formats.darknet import layers as darknet
from detector.core.models.formats.onnx import bounds, metadata, shapes, tensors
from tests.models import exports
from tests.models.exports import STATED, Export
from tests.networks import open_network, refusal

# limit, the largest value in a real file, which file
IN_REAL_FILES = [
    (bounds.MAX_NODES, 3_711, "D-FINE with its official exporter, opset 16"),
    (bounds.MAX_NAME, 109, "a tensor of D-FINE after onnxslim"),
    (bounds.MAX_FIELDS, 9_669, "D-FINE"),
    (bounds.MAX_STRUCTURE, 620_372, "bytes of D-FINE with a dynamic batch"),
    (bounds.MAX_PACKED, 1_536, "bytes of YOLOv8 quantised per channel by onnxruntime"),
    (tensors.SHARED, 1, "external data of torch.onnx.export(dynamo=True)"),
    (metadata.MAX_TEXT, 1_381, "names of COCO's classes, by Ultralytics"),
    (metadata.MAX_CLASSES, 9_418, "YOLO9000"),
    (metadata.MAX_SIDE, 1_536, "YOLOv4-P7"),
    (metadata.MAX_STRIDE, 128, "YOLOv4-P7, EfficientDet"),
    (shapes.MAX_ROUNDS, 8, "D-FINE"),
    (shapes.MAX_NODE_ROUNDS, 8 * 3_711, "D-FINE"),
    (shapes.MAX_WORK, 47_395_810, "DETR of transformers, dynamic"),
    (shapes.LARGEST, 409_600, "positions of DETR"),
    (darknet_cfg.MAX_SECTIONS, 376, "cspx-p7-mish.cfg"),
    (darknet.MAX_CHANNELS, 28_269, "yolo9000.cfg"),
    (darknet.MAX_CLASSES, 9_418, "yolo9000.cfg"),
]


@pytest.mark.parametrize(("limit", "largest", "file"), IN_REAL_FILES, ids=lambda one: str(one)[:40])
def test_each_limit_is_at_least_ten_times_what_a_real_file_has(limit, largest, file):
    assert limit >= 10 * largest, file


def long_name(folder):
    export = exports.anchor_free()
    export.nodes[0].name = "n" * (bounds.MAX_NAME + 1)
    return export.save(folder / "yolov8n.onnx", STATED)


def many_nodes(folder):
    export = exports.anchor_free()
    x = export.const([1.0])
    for _ in range(bounds.MAX_NODES):
        x = export.add("Relu", x)
    return export.save(folder / "yolov8n.onnx", STATED)


def costly_constants(folder):
    """Write a network with a Range of 2^30 numbers, of which it reads one."""
    import numpy as np

    export = exports.anchor_free()
    last = export.nodes.pop()
    ends = [export.const(np.int64(value), np.int64) for value in (0, 1 << 30, 1)]
    numbers = export.add("Range", *ends)
    one = export.add("Gather", numbers, export.const(np.array([5]), np.int64))
    moved = export.add("Add", last.input[0], export.add("Cast", one, to=1))
    export.outputs.clear()
    export.out("output0", moved)
    return export.save(folder / "yolov8n.onnx", STATED)


def large_side(folder):
    return Export(side=metadata.MAX_SIDE + 32).out("x", "images").save(folder / "m.onnx")


def darknet_channels(folder):
    (folder / "x.cfg").write_text(
        f"[net]\nwidth=8\nheight=8\n[convolutional]\nfilters={darknet.MAX_CHANNELS + 1}\n[yolo]\n"
    )
    return str(folder / "x.cfg")


def darknet_sections(folder):
    sections = "[dropout]\n" * (darknet_cfg.MAX_SECTIONS + 1)
    (folder / "x.cfg").write_text(f"[net]\nwidth=8\nheight=8\n{sections}")
    return str(folder / "x.cfg")


@pytest.mark.parametrize(
    "make",
    [
        long_name,
        pytest.param(many_nodes, marks=pytest.mark.slow),
        costly_constants,
        large_side,
        darknet_channels,
        darknet_sections,
    ],
)
def test_refusal_mentions_the_variable_that_raises_the_limit(tmp_path, make):
    assert how_to_raise() in refusal(
        make(tmp_path), **({"random_seed": 0} if "darknet" in make.__name__ else {})
    )


def test_variable_raises_every_limit(tmp_path, monkeypatch):
    path = long_name(tmp_path)
    monkeypatch.setenv(VARIABLE, "3")
    assert raised(7) == 21
    assert "=30 " in how_to_raise()
    assert open_network(path).family == "yolov8"


@pytest.mark.parametrize(("most", "read"), [(7, True), (6, False)])
def test_node_limit_counts_nodes_inside_each_call_of_a_function(tmp_path, monkeypatch, most, read):
    """There are 7 nodes: 2 calls of a function, 2 nodes in each call, and one more node."""
    from onnx import helper

    opset = helper.make_opsetid("", 17)
    inside = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    function = helper.make_function("own", "twice", ["x"], ["z"], inside, [opset])
    nodes = [helper.make_node("twice", ["a"], [name], domain="own") for name in ("b", "c")]
    graph = helper.make_graph([*nodes, helper.make_node("Relu", ["b"], ["d"])], "g", [], [])
    model = helper.make_model(graph, functions=[function])
    monkeypatch.setattr(bounds, "MAX_NODES", most)
    with nullcontext() if read else pytest.raises(ModelError, match="has 7 nodes"):
        bounds.measure_graph(tmp_path / "m.onnx", model)


@pytest.mark.parametrize("field", ["t", "tensors", "sparse_tensor", "sparse_tensors"])
def test_limit_of_packed_numbers_applies_in_every_field(tmp_path, monkeypatch, field):
    import onnx

    attribute = onnx.AttributeProto(name="a")
    held = getattr(attribute, field).add() if field[-1] == "s" else getattr(attribute, field)
    held = held.values if "sparse" in field else held
    held.CopyFrom(onnx.helper.make_tensor("n", onnx.TensorProto.INT64, [900], [1] * 900))
    graph = onnx.GraphProto(node=[onnx.NodeProto(attribute=[attribute])])
    monkeypatch.setattr(bounds, "MAX_PACKED", 899)
    with pytest.raises(ModelError, match="packed numbers"):
        bounds.measure_bytes(tmp_path, onnx.ModelProto(graph=graph).SerializeToString())


@pytest.mark.parametrize("factor", [1, MAX_FACTOR])
def test_smallest_and_largest_factor_are_accepted(monkeypatch, factor):
    monkeypatch.setenv(VARIABLE, str(factor))
    assert raised(7) == 7 * factor


@pytest.mark.parametrize(
    "text", ["0", "-1", "ten", "1.5", "1e3", str(MAX_FACTOR + 1), "9" * 30, "²"]
)
def test_invalid_factor_in_the_variable_is_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=VARIABLE):
        raised(1)
