"""The precision that was executed, layer by layer, as the inspector of either major tells it."""

from __future__ import annotations

import pytest

from detector import engines
from detector.engines.base import EngineOptions
from tests.conformance import test_engines as conformance
from tests.engines.trt.opening import opened
from tests.known_answers import plus_one


def test_what_was_executed_is_told_by_node(eleven):
    with engines.open("trt", plus_one(), EngineOptions(precision="tf32")) as engine:
        layers = {layer.name: layer for layer in engine.execution()}
    assert layers["0.conv"].type == "CaskConvolution"
    assert layers["0.conv"].precision == "tf32"
    assert layers["input.cast"].precision == "fp32"
    assert layers["0.conv"].nodes == ("0.conv",)


def half(network):
    """The network in float16, as the conversion for --precision fp16 writes it: cast in, cast out."""
    from onnx import TensorProto, helper, numpy_helper

    graph = network.graph.graph
    graph.node[0].attribute[0].i = TensorProto.FLOAT16
    for tensor in graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), tensor.name))
    for node in list(graph.node[2:]):
        name, node.output[0] = node.output[0], f"{node.name}.half"
        graph.node.append(helper.make_node("Cast", [node.output[0]], [name], name=f"{name}.cast", to=TensorProto.FLOAT))
    network.precision = "fp16"
    return network


def test_halves_are_run_as_halves_and_told(eleven):
    given = conformance.pictures(5)
    with opened(half(plus_one()), precision="fp16") as engine:
        engine.requests[0].slot[:] = given
        conformance.assert_answers(engine.requests[0].infer(1), given)  # small whole numbers are exact in float16
        layers = {layer.name: layer.precision for layer in engine.execution()}
        assert engine.precision == "fp16"
    assert layers["0.conv"] == layers["1.conv"] == "fp16"
    assert layers["0.conv.cast"] == "fp32"


@pytest.mark.parametrize(
    ("layer", "precision", "nodes"),
    [
        # TensorRT 10: format and type in one
        ({"Name": "0.conv + 0.act", "Inputs": [{"Format/Datatype": "Thirty-two wide channel vectorized row major "
          "Int8 format"}]}, "int8", ("0.conv", "0.act")),
        ({"Name": "x", "Inputs": [{"Format/Datatype": "Half"}], "Metadata": "[ONNX Layer: 0.conv]"}, "fp16",
         ("0.conv",)),
        # TensorRT 11: apart
        ({"Name": "x", "Inputs": [{"Format": "Row major linear", "Datatype": "BFloat16"}]}, "bf16", ()),
        ({"Name": "x", "Inputs": [{"DataType": "Float"}], "TacticName": "sm80_xmma_fprop_tf32f32"}, "tf32", ()),
        ({"Name": "r", "LayerType": "Reformat", "Inputs": [{"Datatype": "UInt8"}],
          "Outputs": [{"Datatype": "Half"}]}, "fp16", ()),
        ({"Name": "PWN(0.act)", "Inputs": []}, "unknown", ("0.act",)),
        ("0.conv + 0.act", "unknown", ("0.conv", "0.act")),  # built without details
    ],
)  # fmt: skip
def test_layers_of_both_layouts_of_the_inspector(layer, precision, nodes):
    from detector.engines.tensorrt_parts.inspection import layers_of

    [found] = layers_of({"Layers": [layer]}, {"0.conv", "0.act"})
    assert (found.precision, found.nodes) == (precision, nodes)
