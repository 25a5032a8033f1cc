#!/usr/bin/env bash
# ONNX Runtime: int8 activations with a scale for each channel run without its optimizations, and are refused with them.
#
# One would guess: a graph that the ONNX checker accepts and that runs with ORT_DISABLE_ALL also runs with the default
# level, slower at worst: QuantizeLinear and DequantizeLinear with an axis are allowed on any tensor.
#
# True: at the default level ONNX Runtime fuses DequantizeLinear, Mul (or Add) and QuantizeLinear into its own QLinearMul
# (QLinearAdd) without looking at the scales. That operator takes one scale, so the model is refused at load with a
# message that names an operator which the file does not contain. OpenVINO computes the same file.
#
# Why it matters: depthwise convolutions lose most of their accuracy with one activation scale. Who quantizes them with
# a scale for each channel, for OpenVINO, gets a file that ONNX Runtime does not open, and no hint at the cause.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.31.1 openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

SHAPE = [1, 4, 8, 8]
SCALES = np.array([1e-3, 1e-2, 0.1, 1.0], np.float32) / 127


def pair(taken, given):
    """Round to 8 bits and back, with a scale for each channel."""
    return [
        helper.make_node("QuantizeLinear", [taken, "scale", "zero"], [f"{given}_8"], axis=1),
        helper.make_node("DequantizeLinear", [f"{given}_8", "scale", "zero"], [given], axis=1),
    ]


def network(operator):
    nodes = [*pair("a", "a_float"), *pair("b", "b_float")]
    nodes += [helper.make_node(operator, ["a_float", "b_float"], ["c"]), *pair("c", "out")]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("a", "b", "out")]
    constants = [numpy_helper.from_array(SCALES, "scale")]
    constants += [numpy_helper.from_array(np.full(4, 128, np.uint8), "zero")]
    graph = helper.make_graph(nodes, "network", values[:2], values[2:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def by_ort(model, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


print("onnxruntime", onnxruntime.__version__, "openvino", openvino.__version__)
ones = np.ones(SHAPE, np.float32)
inputs = {"a": ones * 1e-3, "b": ones}
levels = onnxruntime.GraphOptimizationLevel
for operator, fused in (("Mul", "QLinearMul"), ("Add", "QLinearAdd")):
    model = network(operator)
    plain = by_ort(model, levels.ORT_DISABLE_ALL)
    compiled = openvino.Core().compile_model(openvino.Core().read_model(model), "CPU")
    assert np.allclose(compiled(inputs)[0], plain, atol=SCALES.max()), "OpenVINO gives something else now"
    try:
        by_ort(model, levels.ORT_ENABLE_ALL)
    except Exception as error:
        print(f"{operator}: runs without optimizations and by OpenVINO; with them: {str(error)[:120]}")
        assert fused in str(error) and "scalar" in str(error), "another refusal"
    else:
        raise AssertionError("the optimized model runs now")
PY
