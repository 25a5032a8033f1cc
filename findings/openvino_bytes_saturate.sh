#!/usr/bin/env bash
# OpenVINO: arithmetic on 8-bit integers stops at the ends; ONNX Runtime wraps around.
#
# One would guess: Sub, Add and Mul of uint8 tensors give the same bytes in every runtime: ONNX defines them like numpy.
#
# True: ONNX Runtime and ONNX's reference wrap (10 - 128 = 138), OpenVINO on the CPU saturates (10 - 128 = 0, 200 + 100 =
# 255). Neg and Abs of int8 too: -(-128) is -128 in two of them, 127 in OpenVINO. Arithmetic of int32 wraps in all.
#
# Why it matters: networks that take the picture as bytes and begin with "x - 128" or "x * 2" on them. Cast to float
# before the first operation, as exporters of TensorFlow do.
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
from onnx.reference import ReferenceEvaluator

FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
print("onnxruntime", onnxruntime.__version__, "openvino", openvino.__version__, "onnx", onnx.__version__)


def model(operator, given, constants=(), out=(FLOAT,), opset=17, **attributes):
    """One node behind the input x; ``constants``: its further inputs, None for one left out."""
    names = ["x"] + [f"c{at}" if value is not None else "" for at, value in enumerate(constants)]
    node = helper.make_node(operator, names, [f"y{at}" for at in range(len(out))], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(given.dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, given.shape)],
        [helper.make_tensor_value_info(f"y{at}", kind, None) for at, kind in enumerate(out)],
        [numpy_helper.from_array(value, f"c{at}") for at, value in enumerate(constants) if value is not None],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    made = onnx.shape_inference.infer_shapes(made)
    onnx.checker.check_model(made, full_check=True)
    return made


def all_three(operator, given, *more, **attributes):
    """Answers of ONNX Runtime, of OpenVINO in float32, and of ONNX's reference."""
    made = model(operator, given, *more, **attributes)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(made.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    answers = (
        session.run(None, {"x": given}),
        [np.array(value) for value in compiled(given).values()],
        ReferenceEvaluator(made).run(None, {"x": given}),
    )
    for name, answer in zip(("onnxruntime", "openvino   ", "reference  "), answers):
        print(" ", name, *(np.asarray(one).tolist() for one in answer))
    return [[np.asarray(one) for one in answer] for answer in answers]


x = np.array([10, 128, 200], np.uint8)
for operator, by, wrapped, stopped in (
    ("Sub", 128, [138, 0, 72], [0, 0, 72]),
    ("Add", 100, [110, 228, 44], [110, 228, 255]),
    ("Mul", 2, [20, 0, 144], [20, 255, 255]),
):
    print(operator, by)
    ort, ov, reference = all_three(operator, x, [np.array([by], np.uint8)], out=(UINT8,))
    assert ort[0].tolist() == reference[0].tolist() == wrapped
    assert ov[0].tolist() == stopped, "OpenVINO has changed"
low = np.array([-128, 5], np.int8)
print("Neg of int8")
ort, ov, reference = all_three("Neg", low, out=(TensorProto.INT8,))
assert ort[0].tolist() == reference[0].tolist() == [-128, -5] and ov[0].tolist() == [127, -5]
PY
