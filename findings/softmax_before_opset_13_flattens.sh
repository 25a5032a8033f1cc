#!/usr/bin/env bash
# Softmax before opset 13 normalises over all axes from "axis" on; OpenVINO and ONNX's own reference do not.
#
# One would guess: Softmax with axis=1 on a map [N, C, H, W] gives probabilities over the classes, in every opset and in
# every runtime that opens the file.
#
# True: up to opset 12 the input is flattened to two dimensions at "axis", so axis=1 normalises over C, H and W together,
# and without the attribute axis is 1, not -1. ONNX Runtime does that. OpenVINO normalises over the one axis, and so does
# onnx.reference, which takes -1 where the attribute is absent. All agree if the axis is the last one.
#
# Why it matters: old exporters wrote either meaning. A file that was checked with OpenVINO (or with the reference) gives
# other scores in ONNX Runtime, with the same order of classes but another threshold. onnx.version_converter to opset 13
# writes out what ONNX Runtime does.
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


x = np.log(np.arange(1, 9, dtype=np.float32)).reshape(1, 2, 2, 2)
numbers = np.arange(1, 9).reshape(1, 2, 2, 2)
flat, over_axis = numbers / 36, numbers / numbers.sum(1, keepdims=True)
print("opset 11, axis=1")
ort, ov, reference = (answer[0] for answer in all_three("Softmax", x, opset=11, axis=1))
np.testing.assert_allclose(ort, flat, rtol=1e-5)
np.testing.assert_allclose(ov, over_axis, rtol=1e-5)
np.testing.assert_allclose(reference, over_axis, rtol=1e-5)
print("opset 11, no axis")
ort, ov, reference = (answer[0] for answer in all_three("Softmax", x, opset=11))
np.testing.assert_allclose(ort, flat, rtol=1e-5)
np.testing.assert_allclose(ov, over_axis, rtol=1e-5)
np.testing.assert_allclose(reference, numbers / numbers.sum(3, keepdims=True), rtol=1e-5)
print("opset 13, axis=1")
for answer in all_three("Softmax", x, opset=13, axis=1):
    np.testing.assert_allclose(answer[0], over_axis, rtol=1e-5)
converted = onnx.version_converter.convert_version(model("Softmax", x, opset=11, axis=1), 13)
session = onnxruntime.InferenceSession(converted.SerializeToString())
np.testing.assert_allclose(session.run(None, {"x": x})[0], flat, rtol=1e-5)
PY
