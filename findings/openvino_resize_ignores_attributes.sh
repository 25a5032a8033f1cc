#!/usr/bin/env bash
# OpenVINO: Resize of ONNX ignores antialias, keep_aspect_ratio_policy and exclude_outside.
#
# One would guess: an attribute that the frontend does not implement is an error at load, as it is for
# tf_crop_and_resize and half_pixel_symmetric.
#
# True: the three attributes are not read. antialias=1 gives what antialias=0 gives, keep_aspect_ratio_policy="not_larger"
# stretches to the whole size (another output shape), and exclude_outside=1 weighs the pixels beyond the border.
# ONNX Runtime and ONNX's reference follow all three.
#
# Why it matters: preprocessing inside the file. torch's interpolate(antialias=True) exports antialias=1, and the policy is
# how one writes a letterbox; boxes move by several pixels, without any message.
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


x = np.random.default_rng(0).normal(size=(1, 1, 8, 12)).astype(np.float32)
half, twice = np.array([1, 1, 0.4, 0.4], np.float32), np.array([1, 1, 2, 2], np.float32)


def resized(scales=None, sizes=None, **attributes):
    ort, ov, reference = (
        answer[0]
        for answer in all_three("Resize", x, [None, scales] if sizes is None else [None, None, sizes], opset=18, **attributes)
    )
    assert ort.shape == reference.shape
    np.testing.assert_allclose(ort, reference, atol=1e-5)
    return ort, ov


plain, ov_plain = resized(half, mode="linear")
np.testing.assert_allclose(plain, ov_plain, atol=1e-5)
smooth, ov_smooth = resized(half, mode="linear", antialias=1)
np.testing.assert_array_equal(ov_smooth, ov_plain)
assert np.abs(smooth - plain).max() > 0.1
fitted, ov_fitted = resized(
    sizes=np.array([4, 11]), mode="linear", keep_aspect_ratio_policy="not_larger", axes=[2, 3]
)
assert fitted.shape == (1, 1, 4, 6) and ov_fitted.shape == (1, 1, 4, 11)
excluded, ov_excluded = resized(twice, mode="cubic", exclude_outside=1)
_, ov_cubic = resized(twice, mode="cubic")
np.testing.assert_array_equal(ov_excluded, ov_cubic)
assert np.abs(excluded - ov_excluded).max() > 0.1
PY
