"""Damaged labels and detections of ``eval``: COCO, YOLO, MOT, CSV and JSONL."""

from __future__ import annotations

import json
from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import content, labels
from tests.attacks.mutate import damage_json, damage_text

CODES = frozenset({0, 2, 3, 4, 7})
FOUND = [
    {"image_id": 10, "category_id": 1, "bbox": [1, 2, 10, 20], "score": 0.9},
    {"image_id": 10, "category_id": 3, "bbox": [5, 5, 8, 4], "score": 0.8},
    {"image_id": 20, "category_id": 3, "bbox": [5, 5, 8, 4], "score": 0.3},
]
BOX = {"class": "car", "class_id": 1, "score": 0.9, "box": [1, 2, 11, 22]}
ROWS = [
    {"frame": 0, "source": "set/a.jpg", "detections": [BOX]},
    {"frame": 1, "source": "set/b.jpg", "detections": [BOX, {**BOX, "class": "person"}]},
]
TABLE = """source,frame,class,class_id,score,x1,y1,x2,y2
set/a.jpg,0,car,1,0.9,1,2,11,22
set/a.jpg,0,person,0,0.5,3,4,9,9
"""
MOT = "1,-1,5,6,10,20,0.9,1,-1,-1\n2,-1,6,6,10,20,0.8,1,-1,-1\n"
MAPPING = "classes:\n  person: [person]\n  vehicle: [car]\n"
FOR_DOTS = "classes:\n  person: [person, red]\n  vehicle: [car, green]\n"
SEVERAL = {"coco": 3, "yolo": 2, "mot": 2}  # shares; COCO has the most to break


def make(random: Random) -> Case:
    kind = random.choices(tuple(SEVERAL), tuple(SEVERAL.values()))[0]
    files = dict(labels(kind))
    argv = ["eval", {"coco": "set/labels.json", "yolo": "set", "mot": "set"}[kind]]
    found = random.choice(
        ("null", "found.jsonl", "found.csv", f"found.{'txt' if kind == 'mot' else 'json'}")
    )
    if found == "null":
        files["dots.onnx"] = content("dots.onnx")
        argv += ["--model", "dots.onnx", "--engine", "null", "--engines-dir", "../engines"]
    else:
        files |= {found: _written(found), "n.names": b"person\ncar\n"}
        argv += ["--detections", found]
        argv += ["--names", "n.names"] if found == "found.txt" else []
    if found == "null" or random.random() < 0.5:
        files["map.yaml"] = (FOR_DOTS if found == "null" else MAPPING).encode()
        argv += ["--mapping", "map.yaml"]
    told = [name for name in files if not name.endswith((".jpg", ".png", ".onnx"))]
    for name in random.sample(told, random.choice((1, 1, 1, 2))):
        files[name] = _damage(random, name, files[name])
    if random.random() < 0.1:
        del files[random.choice([name for name in files if name.startswith("set/")])]
    argv += random.choice(([], [], ["--json"], ["--json"], ["--format", kind], ["--format", "voc"]))
    return Case(files, tuple(argv), CODES | {8})


def _written(name: str) -> bytes:
    if name == "found.jsonl":
        return "\n".join(json.dumps(row) for row in ROWS).encode() + b"\n"
    return {"found.csv": TABLE, "found.txt": MOT, "found.json": json.dumps(FOUND)}[name].encode()


def _damage(random: Random, name: str, data: bytes) -> bytes:
    if name.endswith(".json"):
        return damage_json(random, json.loads(data))
    if name.endswith(".jsonl") and random.random() < 0.7:
        lines = [json.loads(line) for line in data.splitlines()]
        return b"\n".join(damage_json(random, line) for line in lines) + b"\n"
    return damage_text(random, data.decode(), ("person", "car", "1,2,3", "names:", "[]"))


KIND = Kind("labels", make, share=8)
