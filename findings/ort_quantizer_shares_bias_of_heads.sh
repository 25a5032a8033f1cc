#!/usr/bin/env bash
# ONNX Runtime's quantizer, format QOperator: a head that all levels of a pyramid share is wrong on all but the first.
#
# One would guess: QuantFormat.QOperator and QuantFormat.QDQ are two notations of one quantized network.
#
# True (1.31.1): a bias in int32 has the scale of the input times that of the weights. Where two convolutions share
# weights and bias and their inputs have other ranges, QOperator quantizes the bias once, with the range of the first
# input, and gives it to both: ten times the range, ten times the bias. QDQ makes a bias for each.
# Likewise Relu: if the map before it is also read by another layer, QDQ keeps Relu, and QOperator drops it for both.
#
# Why it matters: RetinaNet, FCOS and their descendants share the head between the levels, so that boxes of small or
# large objects are lost while others are fine; and YOLO-like necks read maps twice. Use QDQ (the default today).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6 sympy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import logging

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

logging.disable(logging.WARNING)
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
random = np.random.default_rng(0)
pictures = [random.random((1, 3, 8, 8), np.float32) for _ in range(6)]
ARRAYS = {
    "w": random.normal(0, 0.1, (8, 3, 3, 3)).astype(np.float32),
    "b": random.normal(0, 1, 8).astype(np.float32),
    "ten": np.array(10, np.float32),
}
NETWORKS = {
    "shared head": [
        helper.make_node("Conv", ["x", "w", "b"], ["first"], name="first"),
        helper.make_node("Mul", ["x", "ten"], ["wide"], name="wide"),  # another level, with another range
        helper.make_node("Conv", ["wide", "w", "b"], ["y"], name="second"),
    ],
    "map read twice": [
        helper.make_node("Conv", ["x", "w", "b"], ["map"], name="conv"),
        helper.make_node("Relu", ["map"], ["first"], name="relu"),
        helper.make_node("Add", ["map", "first"], ["y"], name="add"),
    ],
}


class Pictures(CalibrationDataReader):
    def __init__(self):
        self.left = iter(pictures)

    def get_next(self):
        picture = next(self.left, None)
        return None if picture is None else {"x": picture}


def errors(nodes, format_):
    """The largest error of each output, relative to its largest value."""
    used = {name for node in nodes for name in node.input}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 6, 6]) for name in ("first", "y")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])]
    arrays = [numpy_helper.from_array(array, name) for name, array in ARRAYS.items() if name in used]
    graph = helper.make_graph(nodes, "g", inputs, outputs, arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, "float.onnx")
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static("float.onnx", "int8.onnx", Pictures(), quant_format=format_, **types)
    right, made = (
        onnxruntime.InferenceSession(path).run(None, {"x": pictures[0]}) for path in ("float.onnx", "int8.onnx")
    )
    return [float(np.abs(one - other).max() / np.abs(one).max()) for one, other in zip(right, made, strict=True)]


seen = {}
for name, nodes in NETWORKS.items():
    for format_ in (QuantFormat.QDQ, QuantFormat.QOperator):
        seen[name, format_.name] = errors(nodes, format_)
        print(f"{name:15} {format_.name:9} relative errors of the two outputs", *np.round(seen[name, format_.name], 3))
for name in NETWORKS:
    assert max(seen[name, "QDQ"]) < 0.03
assert seen["shared head", "QOperator"][0] < 0.03 < 0.3 < seen["shared head", "QOperator"][1], "it has changed"
assert seen["map read twice", "QOperator"][1] > 0.1, "it has changed"
PY
