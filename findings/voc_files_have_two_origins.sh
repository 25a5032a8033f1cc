#!/usr/bin/env bash
# Pascal VOC: supervision counts pixels from 1, globox from 0, and the same file gives boxes a pixel apart.
#
# One would guess: xmin, ymin, xmax and ymax of a VOC file are written and read alike: a dataset that goes through two
# libraries keeps its boxes.
#
# True: supervision 0.31.2 follows the devkit (the first pixel is 1, the last one is included): it adds 1 to xmin and ymin
# when it writes and takes it away when it reads. globox 2.9.0 takes the numbers as they are, both ways. Through both, a
# box of 20x30 becomes 19x29, and back in the other order it grows to 21x31. Each library's own round trip is exact.
#
# Why it matters: for an object of 16 pixels that is an IoU of 0.88: COCO's AP at 0.9 and 0.95 of perfect detections is 0.
# Convert with one library only, or compare one box by hand.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q supervision==0.31.2 globox==2.9.0 numpy opencv-python-headless==4.14.0.94
cd "$folder"
mkdir pictures
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import supervision
from globox import AnnotationSet

print("supervision", version("supervision"), "globox", version("globox"))
cv2.imwrite("pictures/a.png", np.zeros((80, 100, 3), np.uint8))
BOX = [10.0, 20.0, 30.0, 50.0]  # edges: 20 wide, 30 high


def boxes_by_supervision(folder):
    found = supervision.DetectionDataset.from_pascal_voc("pictures", folder)
    return [box.tolist() for _, _, detections in found for box in detections.xyxy]


def boxes_by_globox(folder):
    return [[box.xmin, box.ymin, box.xmax, box.ymax] for one in AnnotationSet.from_pascal_voc(folder) for box in one.boxes]


def numbers(folder):
    box = ElementTree.parse(next(Path(folder).glob("*.xml"))).find(".//bndbox")
    return [float(box.find(side).text) for side in ("xmin", "ymin", "xmax", "ymax")]


detections = supervision.Detections(xyxy=np.array([BOX], np.float32), class_id=np.array([0]))
dataset = supervision.DetectionDataset(["cat"], ["pictures/a.png"], {"pictures/a.png": detections})
dataset.as_pascal_voc(annotations_directory_path="first")
dataset.as_coco(annotations_path="coco.json")
AnnotationSet.from_coco("coco.json").save_pascal_voc("second")
print("written by supervision", numbers("first"), "read by both", boxes_by_supervision("first"), boxes_by_globox("first"))
print("written by globox     ", numbers("second"), "read by both", boxes_by_supervision("second"), boxes_by_globox("second"))
assert numbers("first") == [11, 21, 30, 50] and np.allclose(numbers("second"), BOX)
assert boxes_by_supervision("first") == [BOX] and np.allclose(boxes_by_globox("second"), [BOX])
assert boxes_by_globox("first") == [[11, 21, 30, 50]]
assert np.allclose(boxes_by_supervision("second"), [[9, 19, 30, 50]])
PY
