#!/usr/bin/env bash
# ensemble_boxes.soft_nms() lowers no score: what it returns are the scores it was given.
#
# One would guess: soft-NMS keeps a box that overlaps a better one with a lower score. With the linear method a score of
# 0.7 at an IoU of 0.95 becomes 0.035, and the function returns it like that, as OpenCV's softNMSBoxes does.
#
# True (ensemble-boxes 1.0.9): the lowered scores only decide which boxes fall below `thresh` (0.001) and what order
# they are looked at. The boxes that stay come back with the scores of the input, so next to nothing is suppressed: only
# a pair with an IoU of almost 1 loses its second box.
#
# Why it matters: this is the package that people merge detectors with. Its soft-NMS leaves one object with several
# boxes above any threshold that is used for showing or counting, and AP is about that of no NMS at all; nobody sees an
# error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ensemble-boxes==1.0.9 opencv-python-headless==4.14.0.94 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import cv2
import numpy as np
from ensemble_boxes import soft_nms

print(*(f"{one} {version(one)}" for one in ("ensemble-boxes", "opencv-python-headless", "numpy")), sep=", ")
BOXES = [[0.1, 0.1, 0.3, 0.3], [0.1, 0.1, 0.3, 0.29], [0.6, 0.6, 0.8, 0.8]]  # the second one has IoU 0.95 to the first
SCORES = [0.9, 0.7, 0.8]
as_pixels = [[round(1000 * v) for v in (x, y, right - x, bottom - y)] for x, y, right, bottom in BOXES]
for method, name, lowered in (
    (1, cv2.dnn.SoftNMSMethod_SOFTNMS_LINEAR, 0.7 * (1 - 0.95)),
    (2, cv2.dnn.SoftNMSMethod_SOFTNMS_GAUSSIAN, 0.7 * np.exp(-(0.95**2) / 0.5)),
):
    theirs = soft_nms([BOXES], [SCORES], [[0, 0, 0]], method=method, iou_thr=0.5, sigma=0.5, thresh=0.001)[1]
    opencv = cv2.dnn.softNMSBoxes(as_pixels, SCORES, 0.001, 0.5, sigma=0.5, method=name)[0]
    print(
        "linear  " if method == 1 else "gaussian", "ensemble_boxes", np.round(theirs, 3), "OpenCV", np.round(opencv, 3)
    )
    assert np.allclose(sorted(opencv), sorted([0.9, 0.8, lowered]), atol=1e-3)
    assert np.allclose(theirs, [0.9, 0.8, 0.7]), "ensemble_boxes has changed"
PY
