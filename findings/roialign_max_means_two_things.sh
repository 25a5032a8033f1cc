#!/usr/bin/env bash
# RoiAlign with mode="max" means two things: the highest of interpolated values, or of weighted corners.
#
# One would guess: "max" takes the highest of the bilinear samples of a cell, as "avg" takes their mean.
#
# True: OpenVINO does. ONNX Runtime (and ONNX's reference, which follows it) multiplies the four neighbours of each sample
# by their weights and takes the highest of these products, never adding them up. On a ramp of 0..15 the four cells of
# one region are 3.1, 4.6, 9.1 and 10.6 in OpenVINO, and 2.5, 3.3, 7.0 and 7.7 in the others. With "avg" all agree.
#
# Why it matters: a constant map of 1 comes out as 0.77 to 1 in ONNX Runtime: features shrink by a factor that depends on
# where the samples lie between pixels. PyTorch's roi_align has no max: use avg with sampling_ratio, or max-pool afterwards.
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
region = [np.array([[0, 0, 3, 3]], np.float32), np.array([0])]
size = {"output_height": 2, "output_width": 2, "sampling_ratio": 2, "opset": 16}
ort, ov, reference = (answer[0].ravel() for answer in all_three("RoiAlign", x, region, mode="max", **size))
np.testing.assert_allclose(ov, [3.125, 4.625, 9.125, 10.625], rtol=1e-5)
np.testing.assert_allclose(ort, [2.5, 3.28125, 7.0, 7.65625], rtol=1e-5)
np.testing.assert_allclose(reference, ort, rtol=1e-5)
ones = np.ones_like(x)
ort, ov, _ = (answer[0].ravel() for answer in all_three("RoiAlign", ones, region, mode="max", **size))
assert (ov == 1).all()
np.testing.assert_allclose(ort, [1, 0.875, 0.875, 0.765625])
answers = all_three("RoiAlign", x, region, mode="avg", **size)
np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-5)
PY
