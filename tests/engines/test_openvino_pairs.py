"""Which Q/DQ pairs we keep for OpenVINO, and which we remove."""

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.openvino.pairs import remove_needless_pairs
from tests.engines.quantised import pictures, quantised, run_as_written, small_network
from tests.networks import need_engine

INPUT, WIDE = [1, 8, 4, 4], [1, 16, 4, 4]


def graph_of(*nodes, outputs=("y",), shape=INPUT):
    """Return a model with the input x, float32 [1, 8, 4, 4]. Its pairs can use the scales "fine",
    "coarse" and "also fine" (equals "fine"), and the equal zero points "three" and "also three"."""
    from onnx import TensorProto, helper, numpy_helper

    values = {
        "fine": np.float32(0.5),
        "coarse": np.float32(0.75),
        "three": np.uint8(3),
        "also fine": np.float32(0.5),
        "also three": np.uint8(3),
        "weight": np.ones((8, 8, 1, 1), np.float32),
    }
    return helper.make_model(
        helper.make_graph(
            [node for group in nodes for node in group],
            "pairs",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, INPUT)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
            initializer=[
                numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def node(operator, inputs, output, **attributes):
    from onnx import helper

    return [helper.make_node(operator, inputs, [output], name=output, **attributes)]


def pair(given, scale="fine", zero="three", name=""):
    name = name or f"{given}_dq"
    return [
        *node("QuantizeLinear", [given, scale, zero], f"{name}_q"),
        *node("DequantizeLinear", [f"{name}_q", scale, zero], name),
    ]


def remaining(*nodes, **rest):
    """Remove needless pairs; return the tensors that are still quantised, and the graph."""
    from onnx import checker

    after = remove_needless_pairs(graph_of(*nodes, **rest))
    checker.check_model(after, full_check=True)
    return [node.input[0] for node in after.graph.node if node.op_type == "QuantizeLinear"], after


POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}


@pytest.mark.parametrize(
    ("scale", "zero", "expected"),
    [
        ("fine", "three", ["x"]),
        ("also fine", "also three", ["x"]),
        ("coarse", "three", ["x", "pooled"]),
    ],
)
def test_pair_after_a_pooling_is_kept_only_with_another_scale(scale, zero, expected):
    nodes = [
        pair("x"),
        node("MaxPool", ["x_dq"], "pooled", **POOL),
        pair("pooled", scale, zero, "y"),
    ]
    nodes.append(node("Identity", ["y"], "z"))
    quantised_tensors, after = remaining(*nodes, outputs=("z",))
    assert quantised_tensors == expected
    x = np.random.default_rng(0).normal(0, 40, INPUT).astype(np.float32)
    before = graph_of(*nodes, outputs=("z",))
    np.testing.assert_array_equal(run_as_written(after, x), run_as_written(before, x))


@pytest.mark.parametrize(
    ("second", "expected"), [("fine", ["x", "r"]), ("coarse", ["x", "r", "joined"])]
)
def test_pair_after_concat_is_kept_unless_all_inputs_have_its_scale(second, expected):
    quantised_tensors, _ = remaining(
        pair("x"),
        node("Relu", ["x"], "r"),
        pair("r", second),
        node("Concat", ["x_dq", "r_dq"], "joined", axis=1),
        pair("joined", name="j"),
        node("Identity", ["j"], "y"),
        shape=WIDE,
    )
    assert quantised_tensors == expected


@pytest.mark.parametrize(("mode", "expected"), [("nearest", ["x"]), ("linear", ["x", "wide"])])
def test_pair_after_resize_is_kept_unless_its_mode_is_nearest(mode, expected):
    from onnx import TensorProto, helper

    sizes = helper.make_tensor("sizes", TensorProto.INT64, [4], INPUT)
    quantised_tensors, _ = remaining(
        pair("x"),
        node("Constant", [], "to", value=sizes),
        node("Resize", ["x_dq", "", "", "to"], "wide", mode=mode),
        pair("wide", name="w"),
        node("Identity", ["w"], "y"),
    )
    assert quantised_tensors == expected


def conv(given, made):
    return node("Conv", [given, "weight"], made)


def test_pairs_between_a_convolution_and_its_activation_are_removed():
    """SiLU is the nodes Sigmoid and Mul. Of the pairs around them, only that after Mul is kept."""
    quantised_tensors, after = remaining(
        pair("x"),
        conv("x_dq", "c"),
        pair("c"),
        node("Sigmoid", ["c_dq"], "s"),
        pair("s"),
        node("Mul", ["c_dq", "s_dq"], "m"),
        pair("m"),
        conv("m_dq", "d"),
        pair("d", name="y"),
    )
    assert quantised_tensors == ["x", "m", "d"]
    assert [list(made.input) for made in after.graph.node if made.op_type == "Mul"] == [["c", "s"]]


def test_pair_that_a_convolution_reads_is_kept():
    quantised_tensors, _ = remaining(
        pair("x"),
        conv("x_dq", "c"),
        pair("c"),
        node("Relu", ["c_dq"], "r"),
        pair("r"),
        conv("c_dq", "d"),
        pair("d"),
        node("Add", ["r_dq", "d_dq"], "sum"),
        pair("sum", name="y"),
    )
    assert quantised_tensors == ["x", "c", "sum"]


def test_weight_pairs_and_graph_outputs_are_kept():
    nodes = [pair("x"), conv("x_dq", "c"), pair("c", name="out"), node("Relu", ["out"], "y")]
    quantised_tensors, after = remaining(*nodes, outputs=("out", "y"))
    assert quantised_tensors == ["x", "c"]
    assert len(after.graph.node) == len(graph_of(*nodes).graph.node)


def test_openvino_fuses_a_convolution_and_its_activation(tmp_path):
    need_engine("openvino")
    network = small_network(tmp_path)
    int8 = quantised(network, tmp_path)
    with engines.open("openvino", int8, EngineOptions(precision="int8")) as engine:
        layers = engine.execution()
        engine.requests[0].slot[:] = pictures(network, 9)
        engine.requests[0].infer(1)
    # Layer "1" is left out: OpenVINO removes its Relu, since u8 has no negative values.
    for name in ("0", "4"):
        [layer] = [layer for layer in layers if f"{name}.conv" in layer.nodes]
        assert f"{name}.act" in layer.nodes
