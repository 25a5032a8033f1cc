"""Nodes that OpenVINO computes differently from ONNX Runtime are refused."""

from dataclasses import replace

import numpy as np
import pytest

from detector.core.errors import EngineError
from tests.engines.quantised import pictures, small_network
from tests.known_answers import run_once
from tests.networks import need_engine

need_engine("openvino", allow_module_level=True)

BACK = ("Resize", ["map", "", "", "sizes"], {"mode": "nearest"})
POOL = {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
INSIDE = POOL | {"kernel_shape": [3, 3], "strides": [2, 2]}
MEAN = INSIDE | {"count_include_pad": 1}
FIT = {"mode": "linear", "keep_aspect_ratio_policy": "not_larger", "axes": [2, 3]}
LARGEST = {"mode": "max", "output_height": 4}
HALF = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}


def bytes_between(operator, *inputs):
    return [
        ("Cast", ["x"], {"to": 2}),
        (operator, ["map", *inputs], {}),
        ("Cast", ["map"], {"to": 1}),
    ]


# Opset; nodes inserted before the last Conv; whether OpenVINO 2026.4.1 computes these differently.
CASES = {
    "antialias": (18, [("Resize", ["x", "", "half"], HALF | {"antialias": 1}), BACK], True),
    "no-antialias": (18, [("Resize", ["x", "", "half"], HALF), BACK], False),
    "aspect": (18, [("Resize", ["x", "", "", "square"], FIT), BACK], True),
    "window-in-padding": (17, [("MaxPool", ["x"], POOL), BACK], True),
    "window-inside": (17, [("MaxPool", ["x"], INSIDE), BACK], False),
    "mean-with-padding": (19, [("AveragePool", ["x"], MEAN), BACK], True),
    "reduce-l1": (17, [("ReduceL1", ["x"], {"axes": [1]}), ("Add", ["x", "map"], {})], True),
    "reduce-l2": (17, [("ReduceL2", ["x"], {"axes": [1]}), ("Add", ["x", "map"], {})], False),
    "reduce-no-axes": (18, [("ReduceL2", ["x"], {"noop_with_empty_axes": 1})], True),
    "bytes-subtracted": (17, bytes_between("Sub", "byte"), True),
    "bytes-multiplied": (17, bytes_between("Mul", "one"), False),
    "roi-align-max": (17, [("RoiAlign", ["x", "rois", "zeros"], LARGEST), BACK], True),
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
    for number, (operator, inputs, attributes) in enumerate(nodes):
        output = f"made{number}"
        inputs = [names.get(name, name) for name in inputs]
        graph.node.insert(at, helper.make_node(operator, inputs, [output], output, **attributes))
        names["map"], at = output, at + 1
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


@pytest.mark.parametrize("case", CASES)
def test_file_runs_only_if_openvino_agrees_with_onnx_runtime(case, tmp_path):
    opset, nodes, differs = CASES[case]
    network = with_nodes(small_network(tmp_path), opset, nodes)
    picture = pictures(network, 9)
    expected = run_once(network, picture)[0]
    if differs:
        with pytest.raises(EngineError, match=r"node made\d \(\w+\) differently; use --engine"):
            run_once(network, picture, "openvino")
    else:
        output = run_once(network, picture, "openvino")[0]
        np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-3)
