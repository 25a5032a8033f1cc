#!/usr/bin/env bash
# OpenVINO IR: preprocessing that was put into a file cannot be seen as layers.
#
# One would guess: after PrePostProcessor(...).reverse_channels().scale(255) and save_model(), the .xml shows a layer
# that reverses the channels and one that divides, as it shows a Convert for an input of bytes.
#
# True: both are folded into the weights of the first convolution. The saved network has the input and the layers of
# the one without preprocessing; only numbers differ. Both leave one and the same mark ("preprocessing") in the rt_info
# of the weights, which says neither what was done nor by how much; reversed weights are called Gather_NUMBER.
#
# Why it matters: who reads the layers to find out whether pixels are RGB or BGR, 0..1 or 0..255, sees "f32
# [1,3,H,W]" in both files, feeds one of them wrongly, and gets plausible boxes of the wrong things.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openvino==2026.4.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import openvino
from openvino import Layout, opset13
from openvino.preprocess import PrePostProcessor


def network():
    picture = opset13.parameter([1, 3, 32, 32], np.float32, name="images")
    weights = opset13.constant(np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32))
    made = opset13.convolution(picture, weights, [1, 1], [1, 1], [1, 1], [1, 1])
    return openvino.Model([opset13.result(opset13.relu(made))], [picture], "network")


def saved(name, prepare):
    model = network()
    if prepare is not None:
        steps = PrePostProcessor(model)
        steps.input().model().set_layout(Layout("NCHW"))
        prepare(steps.input().preprocess())
        model = steps.build()
    openvino.save_model(model, name, compress_to_fp16=False)
    read = openvino.Core().read_model(name)
    convolution = next(op for op in read.get_ordered_ops() if op.get_type_name() == "Convolution")
    weights = convolution.input_value(1).get_node()
    marks = sorted(key for key in weights.get_rt_info() if key.startswith("preprocessing"))
    layers = [op.get_type_name() for op in read.get_ordered_ops()]
    print(f"{name:14} {layers}\n{'':14} weights {weights.get_friendly_name()}, marks {marks}")
    return layers, marks, weights.get_friendly_name(), np.array(weights.get_data())


print("openvino", openvino.__version__)
plain = saved("plain.xml", None)
scaled = saved("scaled.xml", lambda steps: steps.scale(255.0))
turned = saved("turned.xml", lambda steps: steps.reverse_channels())
assert plain[0] == scaled[0] == turned[0], "a layer shows the preprocessing now"
assert np.allclose(scaled[3], plain[3] / 255) and np.array_equal(turned[3], plain[3][:, ::-1])
assert scaled[1] == turned[1] != plain[1] == [], "the marks have changed"
assert turned[2].startswith("Gather_"), "the reversed weights have another name"
print("as described: the layers are the same in all three files")
PY
