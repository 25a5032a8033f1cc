"""Nodes that OpenVINO computes in another way than ONNX Runtime: refused, never run as if alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError
from tests.engines.quantised import pictures, small_network
from tests.networks import need_engine

need_engine("openvino", allow_module_level=True)

BACK = ("Resize", ["map", "", "", "sizes"], {"mode": "nearest"})
POOL = {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
INSIDE = POOL | {"kernel_shape": [3, 3], "strides": [2, 2]}
MEAN = INSIDE | {"count_include_pad": 1}
FIT = {"mode": "linear", "keep_aspect_ratio_policy": "not_larger", "axes": [2, 3]}
HALF = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}


def bytes_between(operator, *inputs):
    return [
        ("Cast", ["x"], {"to": 2}),
        (operator, ["map", *inputs], {}),
        ("Cast", ["map"], {"to": 1}),
    ]


# What comes before the last convolution, and whether OpenVINO 2026.4.1 makes something else of it.
CASES = {
    "antialias": (18, [("Resize", ["x", "", "half"], HALF | {"antialias": 1}), BACK], True),
    "no-antialias": (18, [("Resize", ["x", "", "half"], HALF), BACK], False),
    "aspect": (
        18,
        [("Resize", ["x", "", "", "square"], FIT), BACK],
        True,
    ),
    "window-in-padding": (17, [("MaxPool", ["x"], POOL), BACK], True),
    "window-inside": (17, [("MaxPool", ["x"], INSIDE), BACK], False),
    "mean-with-padding": (19, [("AveragePool", ["x"], MEAN), BACK], True),
    "reduce-l1": (17, [("ReduceL1", ["x"], {"axes": [1]}), ("Add", ["x", "map"], {})], True),
    "reduce-l2": (17, [("ReduceL2", ["x"], {"axes": [1]}), ("Add", ["x", "map"], {})], False),
    "reduce-none": (18, [("ReduceL2", ["x"], {"noop_with_empty_axes": 1})], True),
    "bytes": (17, bytes_between("Sub", "byte"), True),
    "bytes-that-stay": (17, bytes_between("Mul", "one"), False),
    "highest": (
        17,
        [("RoiAlign", ["x", "rois", "zeros"], {"mode": "max", "output_height": 4}), BACK],
        True,
    ),
}  # fmt: skip


def with_nodes(network, opset, nodes):
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.ModelProto()
    model.CopyFrom(network.graph)
    graph, before = model.graph, list(network.graph.graph.node)
    at = max(at for at, node in enumerate(before) if node.op_type == "Conv")
    last = before[at]
    names = {"x": last.input[0]}
    for number, (operator, given, attributes) in enumerate(nodes):
        made = f"made{number}"
        given = [names.get(name, name) for name in given]
        graph.node.insert(at, helper.make_node(operator, given, [made], made, **attributes))
        names["map"], at = made, at + 1
    graph.node[at].input[0] = names["map"]
    inferred = onnx.shape_inference.infer_shapes(network.graph).graph
    shape = next(
        [one.dim_value for one in info.type.tensor_type.shape.dim]
        for info in inferred.value_info
        if info.name == last.input[0]
    )
    constants = {
        "half": np.float32([1, 1, 0.5, 0.5]),
        "sizes": np.int64(shape),
        "square": np.int64([8, 8]),
        "byte": np.uint8([100]),
        "one": np.uint8([1]),
        "rois": np.float32([[0, 0, 6, 4]]),
        "zeros": np.int64([0]),
    }
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    model.opset_import[0].version = opset
    del graph.value_info[:]
    return replace(network, graph=model, path=None, details={"recognised": "by a test"})


def run(engine, network):
    with engines.open(engine, network, EngineOptions(requests=1)) as opened:
        opened.requests[0].slot[:] = pictures(network, 9)
        return opened.requests[0].infer(1)[0].copy()


@pytest.mark.parametrize("case", CASES)
def test_a_file_runs_if_openvino_computes_what_onnx_runtime_does(case, tmp_path):
    opset, nodes, differs = CASES[case]
    network = with_nodes(small_network(tmp_path), opset, nodes)
    expected = run("ort", network)
    if differs:
        with pytest.raises(EngineError, match=r"node made\d \(\w+\) differently; use --engine"):
            run("openvino", network)
    else:
        np.testing.assert_allclose(run("openvino", network), expected, rtol=1e-3, atol=1e-3)
