#!/usr/bin/env bash
# OpenVINO: Relu, Clip, Max and ReduceMax turn NaN into an ordinary number.
#
# One would guess: a network whose numbers have become NaN gives NaN, so that checking the outputs finds it.
#
# True: ONNX Runtime, ONNX's reference and numpy hand NaN on. OpenVINO on the CPU gives 0 for Relu(NaN), the lower limit
# for Clip(NaN), the other operand for Max(NaN, y), and the highest of the rest for ReduceMax. MaxPool ignores NaN in
# OpenVINO; in ONNX Runtime it depends on the place: the window [NaN, 1] gives 1 and [2, NaN] gives NaN.
#
# Why it matters: damaged weights or an overflow end behind the first Relu as zeros: no detections and no error. Look for
# NaN in the weights, or compare one picture with another runtime.
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

FLOAT = TensorProto.FLOAT
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


nan = np.float32(np.nan)
x = np.array([nan, 1, -1], np.float32)
for operator, constants, expected, hidden in (
    ("Relu", [], [nan, 1, 0], [0, 1, 0]),
    ("Clip", [np.float32(-0.5), np.float32(0.5)], [nan, 0.5, -0.5], [-0.5, 0.5, -0.5]),
    ("Max", [np.zeros(3, np.float32)], [nan, 1, 0], [0, 1, 0]),
    ("ReduceMax", [], [nan], [1]),
):
    print(operator)
    ort, ov, reference = all_three(operator, x, constants)
    np.testing.assert_array_equal(ort[0].ravel(), expected)
    np.testing.assert_array_equal(reference[0].ravel(), expected)
    np.testing.assert_array_equal(ov[0].ravel(), hidden, "OpenVINO has changed")
print("MaxPool")
pair = np.array([nan, 1, 2, nan], np.float32).reshape(1, 1, 1, 4)
ort, ov, _ = all_three("MaxPool", pair, kernel_shape=[1, 2], strides=[1, 2])
np.testing.assert_array_equal(ort[0].ravel(), [1, nan])
np.testing.assert_array_equal(ov[0].ravel(), [1, 2])
PY
