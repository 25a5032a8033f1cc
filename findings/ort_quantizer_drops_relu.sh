#!/usr/bin/env bash
# ONNX Runtime's quantizer: with ranges made symmetric it drops Relu, and negative values pass.
#
# One would guess: calibration chooses scales and zero points; another method makes a network a little more or less
# exact, but leaves its layers.
#
# True (1.31.1): quantize_static() removes Relu behind a convolution, since quantizing cuts at the zero point. That
# holds only if 0 is the lowest level. CalibrationMethod.Distribution, and the option CalibTensorRangeSymmetric with
# another method, make the range symmetric: the zero point is in the middle, nothing is cut, and Relu is gone anyhow.
# The option ActivationSymmetric, which also makes it symmetric, keeps Relu.
#
# Why it matters: the file loads and runs, with errors thirty times those of MinMax. One blames the method or the data,
# raises the number of pictures, or gives up int8. Count the layers before and after.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6 sympy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import contextlib
import io
import logging

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

logging.disable(logging.WARNING)
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
random = np.random.default_rng(0)
weights = {
    "first": random.normal(0, 0.1, (8, 3, 3, 3)).astype(np.float32),
    "second": random.normal(0, 0.1, (8, 8, 3, 3)).astype(np.float32),
}
nodes = [
    helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["a"], ["b"]),
    helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
    helper.make_node("Sigmoid", ["c"], ["y"]),
]
inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])]
outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16, 16])]
arrays = [numpy_helper.from_array(array, name) for name, array in weights.items()]
graph = helper.make_graph(nodes, "g", inputs, outputs, arrays)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnx.checker.check_model(model)
onnx.save(model, "float.onnx")
pictures = [random.random((1, 3, 16, 16), np.float32) for _ in range(8)]


class Pictures(CalibrationDataReader):
    def __init__(self):
        self.left = iter(pictures)

    def get_next(self):
        picture = next(self.left, None)
        return None if picture is None else {"x": picture}


right = onnxruntime.InferenceSession("float.onnx").run(None, {"x": pictures[0]})[0]


def quantized(method, options):
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            *("float.onnx", "int8.onnx", Pictures()),
            quant_format=QuantFormat.QDQ,
            calibrate_method=method,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options=options,
        )
    layers = [node.op_type for node in onnx.load("int8.onnx").graph.node if "Linear" not in node.op_type]
    (made,) = onnxruntime.InferenceSession("int8.onnx").run(None, {"x": pictures[0]})
    return layers, float(np.abs(made - right).max())


seen = {}
for method, options in (
    (CalibrationMethod.MinMax, {}),
    (CalibrationMethod.MinMax, {"ActivationSymmetric": True}),
    (CalibrationMethod.MinMax, {"CalibTensorRangeSymmetric": True}),
    (CalibrationMethod.Distribution, {}),
):
    name = f"{method.name} {' '.join(options)}".strip()
    seen[name] = layers, error = quantized(method, options)
    print(f"{name:33} {' '.join(layers):24} largest error {error:.4f}")
assert seen["MinMax"][1] < 0.01 and seen["MinMax ActivationSymmetric"][1] < 0.01
for name in ("MinMax CalibTensorRangeSymmetric", "Distribution"):
    assert "Relu" not in seen[name][0] and seen[name][1] > 0.05, f"{name} has changed"
PY
