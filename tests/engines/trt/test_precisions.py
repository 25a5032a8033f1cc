"""The executed precision of each layer, as the inspector of TensorRT 10 or 11 reports it."""

import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.trt.layers import layers_of
from tests.known_answers import plus_one


@pytest.mark.slow
def test_execution_lists_each_node_with_the_precision_of_its_layer(tensorrt):
    with engines.open("trt", plus_one(), EngineOptions(precision="tf32")) as engine:
        layers = {layer.name: layer for layer in engine.execution()}
    assert layers["0.conv"].type == "CaskConvolution"
    assert layers["0.conv"].precision == "tf32"
    assert layers["input.cast"].precision == "fp32"
    assert layers["0.conv"].nodes == ("0.conv",)


BOTH = "[ONNX Layer: 0.conv]\x1f[ONNX Layer: 0.act]"
KNOWN = {"0.conv": "0.conv", "0.act": "0.act"}
ROWS = "Thirty-two wide channel vectorized row major Int8 format"


def layer(name: str, kind: str = "", **more: object) -> dict[str, object]:
    return {"Name": name, "Inputs": [{"Datatype": kind}] if kind else [], **more}


@pytest.mark.parametrize(
    ("described", "precision", "nodes"),
    [
        # TensorRT 10 reports format and type in one field.
        (layer("0.conv + 0.act", Inputs=[{"Format/Datatype": ROWS}]), "int8", [*KNOWN]),
        (
            layer("x", Inputs=[{"Format/Datatype": "Half"}], Metadata="[ONNX Layer: 0.conv]"),
            "fp16",
            ["0.conv"],
        ),
        # TensorRT 11 reports them in two fields.
        (layer("x", Inputs=[{"Format": "Row", "Datatype": "BFloat16"}]), "bf16", []),
        (layer("x", "Float", TacticName="sm80_xmma_fprop_tf32f32"), "tf32", []),
        (layer("r", "UInt8", LayerType="Reformat", Outputs=[{"Datatype": "Half"}]), "fp16", []),
        (layer("PWN(0.act)"), "unknown", ["0.act"]),
        ("0.conv + 0.act", "unknown", [*KNOWN]),  # built without details
        # A layer that TensorRT inserts has no node, though its name contains another layer's name.
        (
            layer(
                "Reformatting CopyNode for Input Tensor 0 to 0.conv + 0.act",
                LayerType="Reformat",
                Outputs=[{"Datatype": "Int8"}],
                Metadata="",
            ),
            "int8",
            [],
        ),
        ("Reformatting CopyNode for Output Tensor 0 to 0.conv", "unknown", []),
        # Control characters separate the nodes of horizontally fused layers.
        (layer("__myl", "Half", Metadata=f"{BOTH}\x1e[ONNX Layer: gone]"), "fp16", [*KNOWN]),
        ("0.conv || 0.act", "unknown", [*KNOWN]),
    ],
)
def test_layers_are_read_from_both_formats_of_the_inspector(described, precision, nodes):
    [row] = layers_of({"Layers": [described]}, KNOWN)
    assert (row.precision, list(row.nodes)) == (precision, nodes)


def test_node_in_several_layers_counts_only_in_the_first_that_computes():
    """Otherwise the node's cost would count twice."""
    layers = [
        layer("move", LayerType="Reformat", Metadata="[ONNX Layer: 0.conv]"),
        layer("first", LayerType="gemm", Metadata=BOTH),
        layer("second", LayerType="kgen", Metadata=BOTH),
    ]
    found = [row.nodes for row in layers_of({"Layers": layers}, KNOWN)]
    assert found == [(), ("0.conv", "0.act"), ()]


def test_foreign_plan_keeps_the_names_of_its_nodes():
    """Without a graph, all names are kept. Names of other exporters have slashes and brackets."""
    kept = "[ONNX Layer: /model.22/cv2.0/Conv]\x1f[ONNX Layer: /act[1]/Mul]"
    [row] = layers_of({"Layers": [layer("x", Metadata=kept)]}, None)
    assert row.nodes == ("/model.22/cv2.0/Conv", "/act[1]/Mul")
    assert layers_of({"Layers": None}, None) == layers_of({}, None) == []
