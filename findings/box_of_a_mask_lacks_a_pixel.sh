#!/usr/bin/env bash
# The box of a mask: supervision names its last pixel, pycocotools the edge behind it.
#
# One would guess: the box around a mask of 8x8 pixels is 8 wide, in any library, and its area is that of a full mask.
#
# True: pycocotools' toBbox() gives x, y, 8, 8. supervision's mask_to_xyxy() gives the first and the last pixel, so as
# left, top, right, bottom the box is 7 wide: supervision's own box_area and box_iou_batch() take the numbers as edges.
#
# Why it matters: boxes of masks are labels (SAM) or detections (segmentation networks). Against boxes of a COCO file an
# exact mask has IoU 0.77 at 8 pixels and 0.88 at 16: small objects fail at the higher thresholds of AP, and
# networks that learn from such boxes are a pixel short. Add 1 to right and bottom.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q supervision==0.31.2 pycocotools==2.0.11 numpy opencv-python-headless==4.14.0.94
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
import supervision
from pycocotools import mask as coco

print(*(f"{one} {version(one)}" for one in ("supervision", "pycocotools", "numpy")), sep=", ")
for size, expected in ((8, 0.766), (16, 0.879), (64, 0.969)):
    mask = np.zeros((100, 100), bool)
    mask[20 : 20 + size, 30 : 30 + size] = True
    x, y, width, height = coco.toBbox(coco.encode(np.asfortranarray(mask.astype(np.uint8))))
    by_coco = np.array([[x, y, x + width, y + height]])
    by_supervision = supervision.mask_to_xyxy(mask[None]).astype(float)
    found = supervision.Detections(xyxy=by_supervision, mask=mask[None])
    overlap = float(supervision.box_iou_batch(by_coco, by_supervision)[0, 0])
    print(f"{size:2} pixels: pycocotools {by_coco[0]}, supervision {by_supervision[0]}, IoU {overlap:.3f};", end=" ")
    print(f"area of supervision's mask {found.area[0]}, of its box {found.box_area[0]:g}")
    assert found.area[0] == width * height == size**2
    assert found.box_area[0] == (size - 1) ** 2, "supervision has changed"
    assert np.isclose(overlap, expected, atol=1e-3)
PY
