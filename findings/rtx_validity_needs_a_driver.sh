#!/usr/bin/env bash
# TensorRT for RTX: without a driver, get_engine_validity() calls every plan invalid, good ones too.
#
# One would guess: Runtime.get_engine_validity(header) reads the header of a plan (get_engine_header_size() bytes) and
# compares versions and targets, so it can sort good plans from cut, foreign and damaged ones on the machine that built
# them ahead of time. Building needs no GPU and no driver, after all.
#
# True (1.7.1.116, no NVIDIA driver): it asks the driver for the GPU first, logs that it failed, and answers INVALID for a
# plan that the same process has just built, as for one with a damaged header; the diagnostics are 0 for both. Only a
# header without the plan's magic number has other diagnostics (32).
#
# Why it matters: a build server that "checks" its plans this way throws away good ones, and a test that expects INVALID
# for a damaged plan passes without having looked at it. Keep a hash of the plan and the versions beside it instead.
set -euo pipefail
if [[ -e /dev/nvidiactl ]]; then echo "skipped: this machine has an NVIDIA driver" && exit 0; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorrt-rtx-cu13==1.7.1.116 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import tensorrt_rtx as trt

said = []


class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)

    def log(self, severity, text):
        if severity <= trt.ILogger.WARNING:
            said.append(text)


log = Log()
builder = trt.Builder(log)
network = builder.create_network(0)
picture = network.add_input("x", trt.float32, (1, 3, 8, 8))
layer = network.add_convolution_nd(picture, 4, (3, 3), np.ones((4, 3, 3, 3), np.float32), np.zeros(4, np.float32))
network.mark_output(layer.get_output(0))
plan = bytes(builder.build_serialized_network(network, builder.create_builder_config()))
runtime = trt.Runtime(log)
size = runtime.engine_header_size
header = plan[:size]
damaged = bytearray(header)
damaged[size // 2] ^= 0xFF
print("tensorrt_rtx", trt.__version__, "plan", len(plan), "bytes, header", size)
answers = {}
for name, given in {"good": header, "damaged": bytes(damaged), "zeros": bytes(size)}.items():
    answers[name] = runtime.get_engine_validity(given)
    print(f"{name:8} {answers[name]}")
print("logged:", said)
invalid = trt.EngineValidity.INVALID
assert answers["good"] == answers["damaged"] == (invalid, 0), "it tells good from damaged now"
assert answers["zeros"] == (invalid, 32), "the answer to other bytes has changed"
assert said and "GPU properties" in said[0], "the log has changed"
print("as described: the good plan is INVALID, like the damaged one")
PY
