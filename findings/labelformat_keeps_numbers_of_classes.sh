#!/usr/bin/env bash
# labelformat: a COCO file becomes a YOLO dataset whose classes begin at 1, and supervision reads persons as bicycles.
#
# One would guess: a converter from COCO to YOLO counts the classes from 0, in the order of their ids, since the first
# number of a YOLO line is the index of the network's output.
#
# True (labelformat 0.1.17): it keeps the ids of COCO. With the usual ids from 1 the labels say 1, 2, 3, data.yaml says
# "1: person, 2: bicycle, 3: car" and nc: 3. supervision 0.31.2 puts the names into a list, where 1 is the second one.
# It refuses a picture that contains the last class (3 of 3); all other pictures get wrong names without a word. With
# COCO's own ids (1 to 90, with gaps) the numbers are out of range as well.
#
# Why it matters: a subset without the last class passes, trains and evaluates, with each class under its neighbour's
# name. Number the categories of the COCO file from 0 before the conversion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q labelformat==0.1.17 supervision==0.31.2 numpy opencv-python-headless==4.14.0.94
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import json
from importlib.metadata import version
from pathlib import Path

import supervision
from labelformat.formats import COCOObjectDetectionInput, YOLOv8ObjectDetectionOutput
from PIL import Image

print(*(f"{one} {version(one)}" for one in ("labelformat", "supervision")), sep=", ")
NAMES = {1: "person", 2: "bicycle", 3: "car"}
Path("images").mkdir()
Image.new("RGB", (64, 48)).save("images/a.jpg")


def read(numbers):
    """Write a picture with an object of each of the classes, convert it, and name what supervision reads."""
    document = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 64, "height": 48}],
        "categories": [{"id": number, "name": name} for number, name in NAMES.items()],
        "annotations": [
            {
                "id": number,
                "image_id": 1,
                "category_id": number,
                "bbox": [10 * number, 10, 8, 8],
                "area": 64,
                "iscrowd": 0,
            }
            for number in numbers
        ],
    }
    Path("coco.json").write_text(json.dumps(document))
    output = YOLOv8ObjectDetectionOutput(output_file=Path("yolo/data.yaml"), output_split="train")
    output.save(label_input=COCOObjectDetectionInput(input_file=Path("coco.json")))
    (labels,) = Path("yolo").rglob("a.txt")
    print("labels:", labels.read_text().split("\n")[:-1])
    try:
        data = supervision.DetectionDataset.from_yolo("images", str(labels.parent), "yolo/data.yaml")
    except ValueError as error:
        return str(error).partition("contains ")[2]
    ((_, _, found),) = data
    return [data.classes[number] for number in found.class_id]


for numbers in ([1, 2], [1, 2, 3]):
    print("objects:", [NAMES[number] for number in numbers])
    made = read(numbers)
    print("supervision reads:", made)
    if numbers == [1, 2]:
        assert made == ["bicycle", "car"], "labelformat or supervision has changed"
    else:
        assert "outside the valid range" in made, made
PY
