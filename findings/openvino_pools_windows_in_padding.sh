#!/usr/bin/env bash
# OpenVINO: MaxPool with ceil_mode=1 and padding has a row more, filled with -3.4e38.
#
# One would guess: nn.MaxPool2d(2, stride=3, padding=1, ceil_mode=True) has the same output in PyTorch and in every
# runtime of its ONNX export.
#
# True: PyTorch drops a last window that begins in the padding at the end, since it would see no pixel. ONNX Runtime and
# ONNX's reference drop it too. OpenVINO keeps it: 4x4 becomes 3x3 instead of 2x2, and the new row and column hold the
# lowest float32. ONNX's shape inference also says 3x3, so ONNX Runtime warns about its own right answer.
# AveragePool with count_include_pad=1 and ceil_mode=1 differs in its last row: OpenVINO divides by the whole kernel.
#
# Why it matters: later layers that resize, flatten or pool to a fixed size hide the extra row; the numbers are wrong
# without an error. Export without ceil_mode, or pad explicitly.
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


x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
pool = {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
ort, ov, reference = (answer[0] for answer in all_three("MaxPool", x, **pool))
np.testing.assert_array_equal(ort, reference)
assert ort.shape == (1, 1, 2, 2) and ov.shape == (1, 1, 3, 3), "OpenVINO has changed"
np.testing.assert_array_equal(ov[..., :2, :2], ort)
assert (ov[..., 2, :] < -3e38).all() and (ov[..., :, 2] < -3e38).all()
inferred = model("MaxPool", x, **pool).graph.output[0].type.tensor_type.shape.dim
print("  shape inference", [one.dim_value for one in inferred])
assert [one.dim_value for one in inferred] == [1, 1, 3, 3]

ones = np.ones((1, 1, 6, 6), np.float32)
mean = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
ort, ov, reference = (
    answer[0] for answer in all_three("AveragePool", ones, opset=19, count_include_pad=1, **mean)
)
np.testing.assert_allclose(ort, reference)
assert ort.shape == ov.shape and not np.allclose(ort[..., -1, :], ov[..., -1, :])
PY
