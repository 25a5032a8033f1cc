"""The precision that was executed, layer by layer, as the inspector of either major tells it."""

from __future__ import annotations

import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from tests.conformance import test_engines as conformance
from tests.engines.trt.opening import opened
from tests.known_answers import plus_one


@pytest.mark.slow
def test_what_was_executed_is_told_by_node(eleven):
    with engines.open("trt", plus_one(), EngineOptions(precision="tf32")) as engine:
        layers = {layer.name: layer for layer in engine.execution()}
    assert layers["0.conv"].type == "CaskConvolution"
    assert layers["0.conv"].precision == "tf32"
    assert layers["input.cast"].precision == "fp32"
    assert layers["0.conv"].nodes == ("0.conv",)


def half(network):
    """The network in float16, as --precision fp16 converts it: cast in, cast out."""
    from onnx import TensorProto, helper, numpy_helper

    graph = network.graph.graph
    graph.node[0].attribute[0].i = TensorProto.FLOAT16
    for tensor in graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), tensor.name)
        )
    for node in list(graph.node[2:]):
        name, node.output[0] = node.output[0], f"{node.name}.half"
        graph.node.append(
            helper.make_node(
                "Cast", [node.output[0]], [name], name=f"{name}.cast", to=TensorProto.FLOAT
            )
        )
    del graph.value_info[:]
    network.precision = "fp16"
    return network


def test_halves_are_run_as_halves_and_told(eleven):
    given = conformance.pictures(5)
    with opened(half(plus_one()), precision="fp16") as engine:
        engine.requests[0].slot[:] = given
        conformance.assert_answers(
            engine.requests[0].infer(1), given
        )  # small whole numbers are exact in float16
        layers = {layer.name: layer.precision for layer in engine.execution()}
        assert engine.precision == "fp16"
    assert layers["0.conv"] == layers["1.conv"] == "fp16"
    assert layers["0.conv.cast"] == "fp32"


@pytest.mark.parametrize(
    ("layer", "precision", "nodes"),
    [
        # TensorRT 10: format and type in one
        (
            {
                "Name": "0.conv + 0.act",
                "Inputs": [
                    {"Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"}
                ],
            },
            "int8",
            ("0.conv", "0.act"),
        ),
        (
            {
                "Name": "x",
                "Inputs": [{"Format/Datatype": "Half"}],
                "Metadata": "[ONNX Layer: 0.conv]",
            },
            "fp16",
            ("0.conv",),
        ),
        # TensorRT 11: apart
        (
            {"Name": "x", "Inputs": [{"Format": "Row major linear", "Datatype": "BFloat16"}]},
            "bf16",
            (),
        ),
        (
            {
                "Name": "x",
                "Inputs": [{"DataType": "Float"}],
                "TacticName": "sm80_xmma_fprop_tf32f32",
            },
            "tf32",
            (),
        ),
        (
            {
                "Name": "r",
                "LayerType": "Reformat",
                "Inputs": [{"Datatype": "UInt8"}],
                "Outputs": [{"Datatype": "Half"}],
            },
            "fp16",
            (),
        ),
        ({"Name": "PWN(0.act)", "Inputs": []}, "unknown", ("0.act",)),
        ("0.conv + 0.act", "unknown", ("0.conv", "0.act")),  # built without details
        # What TensorRT puts in itself has another layer's name in its own, and no node.
        (
            {
                "Name": "Reformatting CopyNode for Input Tensor 0 to 0.conv + 0.act",
                "LayerType": "Reformat",
                "Outputs": [{"Datatype": "Int8"}],
                "Metadata": "",
            },
            "int8",
            (),
        ),
        ("Reformatting CopyNode for Output Tensor 0 to 0.conv", "unknown", ()),
        # Control characters between the nodes; horizontal fusion.
        (
            {
                "Name": "__myl_Conv_myl0_1",
                "Metadata": "[ONNX Layer: 0.conv]\x1f[ONNX Layer: 0.act]\x1e[ONNX Layer: gone]",
                "Inputs": [{"Datatype": "Half"}],
            },
            "fp16",
            ("0.conv", "0.act"),
        ),
        ("0.conv || 0.act", "unknown", ("0.conv", "0.act")),
    ],
)
def test_layers_of_both_layouts_of_the_inspector(layer, precision, nodes):
    from detector.core.engines.trt.layers import layers_of

    [found] = layers_of({"Layers": [layer]}, {"0.conv": "0.conv", "0.act": "0.act"})
    assert (found.precision, found.nodes) == (precision, nodes)


def test_a_node_in_several_layers_is_told_once_of_the_one_that_computes():
    """Its cost would count twice."""
    from detector.core.engines.trt.layers import layers_of

    both = "[ONNX Layer: 0.conv]\x1f[ONNX Layer: 0.act]"
    layers = [
        {"Name": "move", "LayerType": "Reformat", "Metadata": "[ONNX Layer: 0.conv]"},
        {"Name": "first", "LayerType": "gemm", "Metadata": both},
        {"Name": "second", "LayerType": "kgen", "Metadata": both},
    ]
    known = {"0.conv": "0.conv", "0.act": "0.act"}
    assert [layer.nodes for layer in layers_of({"Layers": layers}, known)] == [
        (),
        ("0.conv", "0.act"),
        (),
    ]


def test_a_plan_from_elsewhere_names_the_nodes_that_it_kept():
    """There is no graph to compare with; names of other exporters hold slashes and brackets."""
    from detector.core.engines.trt.layers import layers_of

    layer = {
        "Name": "x",
        "Metadata": "[ONNX Layer: /model.22/cv2.0/Conv]\x1f[ONNX Layer: /act[1]/Mul]",
    }
    [found] = layers_of({"Layers": [layer]}, None)
    assert found.nodes == ("/model.22/cv2.0/Conv", "/act[1]/Mul")
    assert layers_of({"Layers": None}, None) == layers_of({}, None) == []
