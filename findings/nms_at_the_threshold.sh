#!/usr/bin/env bash
# NonMaxSuppression: a pair whose IoU equals the threshold survives in ONNX Runtime and not in OpenVINO.
#
# One would guess: it does not matter which side equality is on; or: iou_threshold=1 switches suppression off everywhere.
#
# True: ONNX Runtime and ONNX's reference remove a box if its IoU is above the threshold, OpenVINO if it is not below.
# At 1.0 ("off") OpenVINO still removes exact duplicates, and at 0.0 also boxes that only touch. Scores are on the same
# side in all: a score equal to score_threshold is removed.
#
# Why it matters: boxes on a grid (anchors, quantised networks, integer pixels) meet 1/3 and 1/2 exactly, and a network
# that gives one box per class has exact duplicates. Two runtimes then count differently. Use 0.5001 or 1.01.
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

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
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


def boxes_left(*boxes, iou):
    boxes = np.array([boxes], np.float32)
    scores = np.linspace(0.9, 0.8, boxes.shape[1], dtype=np.float32)[None, None]
    limits = [np.array([10]), np.array([iou], np.float32), np.array([0], np.float32)]
    answers = all_three("NonMaxSuppression", boxes, [scores, *limits], out=(INT64,))
    return [len(answer[0]) for answer in answers]


print("IoU 1/2, threshold 0.5")
assert boxes_left([0, 0, 2, 2], [0, 0, 2, 1], iou=0.5) == [2, 1, 2]
print("the same box twice, threshold 1")
assert boxes_left([0, 0, 1, 1], [0, 0, 1, 1], iou=1) == [2, 1, 2]
print("boxes that touch, threshold 0")
assert boxes_left([0, 0, 1, 1], [0, 1, 1, 2], iou=0) == [2, 1, 2]
print("IoU 1/2, threshold 0.51")
assert boxes_left([0, 0, 2, 2], [0, 0, 2, 1], iou=0.51) == [2, 2, 2]
PY
