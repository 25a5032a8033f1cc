#!/usr/bin/env bash
# OpenVINO: ReduceL1, ReduceLogSum and ReduceLogSumExp of opsets 13 to 17 reduce every axis.
#
# One would guess: the attribute axes of the reductions was replaced by an input in opset 18 (for ReduceSum in 13), and a
# runtime that reads opset 17 reads the attribute.
#
# True: OpenVINO's ONNX frontend reads the attribute for ReduceMean, ReduceMax, ReduceL2, ReduceProd and ReduceSumSquare.
# For ReduceL1, ReduceLogSum and ReduceLogSumExp it looks for the input from opset 13 on, finds none, and reduces all
# axes, which is what ONNX says of a node without axes. With opsets 11 and 18 the same network is right.
#
# Why it matters: no error where the result still broadcasts (a norm that divides a map): every number is wrong, and the
# same file is right in ONNX Runtime.
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


x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
for operator in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp", "ReduceL2", "ReduceMean"):
    for opset in (11, 13, 17, 18):
        print(operator, "opset", opset)
        axes = {"axes": [1]} if opset < 18 else {}
        ort, ov, reference = all_three(
            operator, x, [np.array([1])] if opset == 18 else [], opset=opset, keepdims=1, **axes
        )
        assert ort[0].shape == reference[0].shape == (2, 1)
        np.testing.assert_allclose(ort[0], reference[0], rtol=1e-5)
        all_axes = opset in (13, 17) and operator in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
        assert ov[0].shape == ((1, 1) if all_axes else (2, 1)), "OpenVINO has changed"
PY
