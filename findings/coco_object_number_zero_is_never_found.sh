#!/usr/bin/env bash
# COCO files whose annotations are numbered from 0: pycocotools never counts the first object as found.
#
# One would guess: an id is a name: 0 does as well as 7. Exact detections have AP 1.
#
# True (pycocotools 2.0.11; faster-coco-eval 1.8.0 too, with a warning): the evaluation notes with each detection the id
# of its object, and takes 0 for "none". The detection of object 0 is a false one. globox 2.9.0 numbers from 0 if it is
# asked for ids (save_coco(auto_ids=True)): exact results have AP 0.252 with two objects and 0.442 with three.
#
# Why it matters: one object of thousands is noise, but test sets of a few pictures and AP of a rare class are off, and
# an AP of one's own that is right "disagrees with COCO". Number from 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q globox==2.9.0 pycocotools==2.0.11 faster-coco-eval==1.8.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import contextlib
import io
import json
from importlib.metadata import version

import faster_coco_eval
import pycocotools.coco
import pycocotools.cocoeval
from globox import Annotation, AnnotationSet, BoundingBox

print(*(f"{one} {version(one)}" for one in ("globox", "pycocotools", "faster-coco-eval")), sep=", ")


def average_precision(coco, evaluator, path, first):
    """AP of detections that equal the objects of a file whose ids are moved to begin at ``first``."""
    with open(path) as file:
        data = json.load(file)
    for number, row in enumerate(data["annotations"]):
        row["id"] = first + number
    rows = [{key: row[key] for key in ("image_id", "category_id", "bbox")} for row in data["annotations"]]
    rows = [{**row, "score": 0.9 - 0.1 * number} for number, row in enumerate(rows)]
    with contextlib.redirect_stdout(io.StringIO()):
        objects = coco()
        objects.dataset = {"info": {}, **data}
        objects.createIndex()
        evaluation = evaluator(objects, objects.loadRes(rows), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


for count, expected in ((2, 0.252), (3, 0.442)):
    boxes = [
        BoundingBox(label="cat", xmin=150 * at, ymin=0, xmax=150 * at + 100, ymax=100, confidence=None)
        for at in range(count)
    ]
    AnnotationSet([Annotation("a.jpg", image_size=(640, 640), boxes=boxes)]).save_coco("x.json", auto_ids=True)
    with open("x.json") as file:
        first = min(row["id"] for row in json.load(file)["annotations"])
    assert first == 0, "globox has changed"
    for name, coco, evaluator in (
        ("pycocotools", pycocotools.coco.COCO, pycocotools.cocoeval.COCOeval),
        ("faster-coco-eval", faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster),
    ):
        from_zero, from_one = (average_precision(coco, evaluator, "x.json", first) for first in (0, 1))
        print(f"{count} objects, {name:16} AP with ids from 0: {from_zero:.3f}, from 1: {from_one:.3f}")
        assert abs(from_zero - expected) < 0.002 and abs(from_one - 1) < 1e-6, "the evaluation has changed"
PY
