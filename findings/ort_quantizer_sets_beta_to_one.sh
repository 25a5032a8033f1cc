#!/usr/bin/env bash
# ONNX Runtime's quantizer: a fully connected layer (Gemm) with beta 0.5 has beta 1 in int8.
#
# One would guess: quantize_static() keeps what the layers compute, up to rounding. Gemm is alpha * A B + beta * C, and
# the attributes stay, or are multiplied into weights and bias.
#
# True (1.31.1): the quantizer writes beta = 1 and leaves the bias as it is. With QDQ alpha is right; with QOperator a
# factor alpha of 0.5 also goes wrong, for the bias that is added is multiplied as well. Errors of half of the output's
# range, without a warning; with alpha and beta of 1 they are 0.004. The runtime itself computes beta rightly.
#
# Why it matters: exporters write 1, but tools that fold scales (of logits, a temperature, a mixture of two heads)
# into Gemm do not. Scores stay in a plausible range, so it looks like the usual loss of int8. Multiply the bias by
# beta before quantizing.
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
weights = random.normal(0, 0.1, (16, 4)).astype(np.float32)
bias = random.normal(0, 1, 4).astype(np.float32)
rows = [random.random((1, 16), np.float32) for _ in range(6)]


class Rows(CalibrationDataReader):
    def __init__(self):
        self.left = iter(rows)

    def get_next(self):
        row = next(self.left, None)
        return None if row is None else {"x": row}


def quantized_error(format_, alpha, beta):
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="head", alpha=alpha, beta=beta)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])]
    arrays = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph([node], "g", inputs, outputs, arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, "float.onnx")
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static("float.onnx", "int8.onnx", Rows(), quant_format=format_, **types)
    right, made = (
        onnxruntime.InferenceSession(path).run(None, {"x": rows[0]})[0] for path in ("float.onnx", "int8.onnx")
    )
    assert np.allclose(right, alpha * rows[0] @ weights + beta * bias, atol=1e-5)
    (layer,) = [one for one in onnx.load("int8.onnx").graph.node if "Gemm" in one.op_type]
    written = {one.name: helper.get_attribute_value(one) for one in layer.attribute}
    error = float(np.abs(made - right).max())
    largest = float(np.abs(right).max())
    print(f"{format_.name:9} alpha {alpha} beta {beta}: written {written}, error {error:.3f} of {largest:.2f}")
    return error


for format_ in (QuantFormat.QDQ, QuantFormat.QOperator):
    assert quantized_error(format_, 1.0, 1.0) < 0.02
    assert quantized_error(format_, 1.0, 0.5) > 0.3 and quantized_error(format_, 1.0, 2.0) > 1, "it has changed"
assert quantized_error(QuantFormat.QDQ, 0.5, 1.0) < 0.02
assert quantized_error(QuantFormat.QOperator, 0.5, 1.0) > 0.3, "it has changed"
PY
