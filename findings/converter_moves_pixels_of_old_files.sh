#!/usr/bin/env bash
# onnx.version_converter: a network of opset 7 to 10 that enlarges linearly sees other pixels afterwards.
#
# One would guess: convert_version(model, 17) keeps what the network computes; it knows what changed between opsets, as
# it shows for Softmax, which it rewrites with Flatten and Reshape.
#
# True: Upsample (7 to 9) and Resize of opset 10 multiply places by the scale ("asymmetric" and "floor" of later
# opsets). The converter makes a Resize without those attributes, whose defaults are half_pixel and round_prefer_floor.
# Linear enlarging moves by up to half a pixel, as does nearest at 1.5 or 1.7; nearest at 2 stays the same, so YOLO
# files do not show it. Hardmax before opset 13 flattens like Softmax, and is not rewritten.
#
# Why it matters: tools convert old files before they quantise, simplify or run them, and feature pyramids with linear
# enlarging (old segmentation and pose networks) lose accuracy without an error. Set the two attributes on every Resize
# after the conversion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)


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


x = np.random.default_rng(0).normal(size=(1, 1, 5, 7)).astype(np.float32)


def before_and_after(operator, constants=(), **attributes):
    old = model(operator, x, constants, **attributes)
    new = onnx.version_converter.convert_version(old, 17)
    answers = []
    for name, one in (("before", old), ("after ", new)):
        answers.append(onnxruntime.InferenceSession(one.SerializeToString()).run(None, {"x": x})[0])
        print(" ", name, answers[-1].ravel()[:8].round(3).tolist(), "...")
    return np.allclose(*answers, atol=1e-6)


twice, half_more = np.array([1, 1, 2, 2], np.float32), np.array([1, 1, 1.5, 1.7], np.float32)
print("Upsample 9, linear, 2")
assert not before_and_after("Upsample", [twice], opset=9, mode="linear"), "onnx has changed"
print("Resize 10, linear, 2")
assert not before_and_after("Resize", [twice], opset=10, mode="linear"), "onnx has changed"
print("Upsample 9, nearest, 1.5")
assert not before_and_after("Upsample", [half_more], opset=9, mode="nearest"), "onnx has changed"
print("Upsample 9, nearest, 2")
assert before_and_after("Upsample", [twice], opset=9, mode="nearest")
print("Softmax 11 and Hardmax 11, axis 1")
assert before_and_after("Softmax", opset=11, axis=1)
assert not before_and_after("Hardmax", opset=11, axis=2), "onnx has changed"
PY
