#!/usr/bin/env bash
# OpenVINO on the CPU computes int64 in 32 bits, without an error.
#
# One would guess: a graph with int64 tensors (ONNX has hardly any other integers: shapes, indices, TopK) computes in 64
# bits, or is refused.
#
# True: the CPU plugin converts int64 to int32. 100000 * 100000 is 1410065408, 5000000000 > 705032704 is false, and
# Cast(3e9) to int64 is -2147483648. ONNX Runtime and ONNX's reference compute in 64 bits.
#
# Why it matters: indices flattened over batch, classes and places, hashes, times in microseconds or nanoseconds, and the
# trick of adding class * 4096 * 4096 to keep classes apart in one NMS.
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


print("100000 * 100000")
ort, ov, reference = all_three("Mul", np.array([100_000]), [np.array([100_000])], out=(INT64,))
assert ort[0].item() == reference[0].item() == 10_000_000_000
assert ov[0].item() == 10_000_000_000 - 2 * 2**32, "OpenVINO has changed"
print("5000000000 > 705032704")
ort, ov, reference = all_three(
    "Greater", np.array([5_000_000_000]), [np.array([705_032_704])], out=(TensorProto.BOOL,)
)
assert (ort[0].item(), reference[0].item(), ov[0].item()) == (True, True, False)
print("Cast of 3e9")
ort, ov, reference = all_three("Cast", np.array([3e9], np.float32), out=(INT64,), to=INT64)
assert ort[0].item() == reference[0].item() == 3_000_000_000 and ov[0].item() == -(2**31)
PY
