#!/usr/bin/env bash
# NudeNet runs a YOLOv8 that Ultralytics exported, and feeds it blue, green, red.
#
# One would guess: nudenet/320n.onnx has the metadata of Ultralytics' exporter, whose networks are trained on RGB, so the
# package gives it RGB, and other runtimes that read the metadata find what the package finds.
#
# True: NudeDetector.detect() swaps the channels of cv2.imread's BGR and swaps them again in blobFromImage(swapRB=True):
# the first channel of the network's input is blue. The same file in any YOLOv8 runtime gets red first, and the two
# disagree about classes (on a street photo one saw FEET_EXPOSED, the other FEET_COVERED).
#
# Why it matters: "same weights, same picture, other classes" looks like a fault of the second runtime. Compare channel
# orders before anything else; which order the weights were trained with is not in the file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nudenet==3.4.2 onnxruntime==1.31.1 opencv-python-headless==4.14.0.94 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import cv2
import numpy as np
from nudenet import NudeDetector

print(*(f"{one} {version(one)}" for one in ("nudenet", "onnxruntime", "opencv-python-headless")), sep=", ")
red = np.zeros((320, 320, 3), np.uint8)
red[..., 2] = 255  # cv2 keeps red last
cv2.imwrite("red.png", red)
detector = NudeDetector()
session, seen = detector.onnx_session, []


class Watched:
    def run(self, names, given):
        seen.append(next(iter(given.values())))
        return session.run(names, given)


detector.onnx_session = Watched()
detector.detect("red.png")
print("metadata:", session.get_modelmeta().custom_metadata_map.get("description"))
means = seen[0][0].mean(axis=(1, 2)).round(3).tolist()
print("a red picture fills the channels with", means)
assert "Ultralytics" in session.get_modelmeta().custom_metadata_map.get("description", "")
assert means == [0.0, 0.0, 1.0], "the order of the channels has changed"
print("as described: red comes last")
PY
