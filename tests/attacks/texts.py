"""Hostile texts: YAML, JSON, CSV and rows of labels. ``cases(seed)`` yields random (name, files)
without end; ``known()`` yields the named ones.

The name begins with the kind of the first file: config, mapping, description, document, names, or a
format of labels or detections (coco, yolo, mot, coco-detections, jsonl, csv, mot-detections,
yolo-detections). Labels of pictures come with their pictures.
"""

import json
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import cv2
import numpy as np
import yaml

from tests.attacks.mutate import damage_text, damage_tree

Files = dict[str, bytes]

YAML_WORDS = (
    "&a [*a]", "? [a]", "- - - -", "{a: {b: {c: 1}}}", "!!binary x", "0o17", "190:20:30", ">",
    "---", "...", "%YAML 9.9", "%TAG ! !", "@", "`", "names: {0: a, 1: b}", "batch: [1]", "|",
    "nc: 99999999", "Conv", "Detect", "SPPF", "Concat", "nn.Upsample", "[-1, 1, Conv, [8, 3, 2]]",
    "&a ", "*a", "- ", ": ", "!!int ", "<<: ", "\t", "[" * 3000, "{" * 300, "9" * 5000,
)  # fmt: skip
CELLS = ("1e300", "1.5", "10" * 9, "9" * 6000, "१", "1e-400", "1e18", ",", " ", "1 2 3")

CONFIG = {
    "network": {"model": "street"},
    "runtime": {"batch": 2, "threads": 1, "size": "64x64", "engine": "null"},
    "selection": {"conf": 0.4, "classes": ["person"], "max_det": 10},
    "loop": {"queue_batches": 3, "sync": True},
    "output": {"crf": 20, "save": ["jsonl"]},
    "frames": 4,
}
MAPPING = {
    "classes": {"vehicle": ["car", "(truck)"], "person": []},
    "ignore": {"person": ["crowd"]},
}
DATA = {"path": ".", "val": "images/val", "names": {0: "person", 1: "car"}}
DESCRIPTION = {
    "nc": 2,
    "depth_multiple": 0.33,
    "width_multiple": 0.25,
    "anchors": [[10, 13, 16, 30], [30, 61, 62, 45]],
    "backbone": [[-1, 1, "Conv", [64, 6, 2, 2]], [-1, 3, "C3", [64]], [-1, 1, "Conv", [64, 3, 2]]],
    "head": [
        [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
        [[-1, 1], 1, "Concat", [1]],
        [[3, 4], 1, "Detect", ["nc", "anchors"]],
    ],
}
COCO = {
    "images": [
        {
            "id": 1,
            "file_name": "a.png",
            "width": 64,
            "height": 48,
            "labelled": ["person"],
            "set": "x",
        },
        {"id": 2, "file_name": "b.png"},
    ],
    "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}],
    "annotations": [
        {
            "id": 1,
            "image_id": 1,
            "category_id": 3,
            "bbox": [1, 2, 10, 20],
            "area": 200,
            "iscrowd": 0,
        },
        {"id": 2, "image_id": 2, "category_id": 1, "bbox": [0.5, 2, 3, 4], "ignore": 1},
    ],
}
RESULTS = [{"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "score": 0.5}]
LINES = [
    {
        "source": "a.png",
        "frame": 0,
        "detections": [{"box": [1, 2, 3, 4], "score": 0.5, "class": "car"}],
    },
    {"source": "b.png", "frame": 0, "detections": []},
]
CSV = "source,frame,class,score,x1,y1,x2,y2\na.png,0,car,0.5,1,2,3,4\nb.png,0,person,0.9,1,1,2,2\n"
MOT = "1,1,10,20,30,40,1,1,1\n2,1,11,20,30,40,1,3,0.5\n2,2,1,2,3,4,0,1,1\n"
SEQUENCE = (
    "[Sequence]\nname=s\nimDir=img1\nframeRate=25\nseqLength=2\nimWidth=64\nimHeight=48\n"
    "imExt=.png\n"
)
YOLO = "0 0.5 0.5 0.2 0.3\n1 0.1 0.1 0.2 0.1 0.3 0.4 0.1 0.2\n"
YOLO_FOUND = "0 0.5 0.5 0.2 0.3 0.9\n1 0.1 0.1 0.1 0.1 0.4\n"
NAMES = "person\nvehicle\n"
DOCUMENT = {
    "schema": 1,
    "engine": {"name": "ort"},
    "sources": [{"frames": 3}],
    "fps": {"end_to_end": 1.5},
}


def cases(seed: int) -> Iterator[tuple[str, Files]]:
    random = Random(seed)
    for number in count(1):
        kind = random.choice(list(KINDS))
        yield f"{kind}/{seed}-{number}", KINDS[kind](random)


def _picture() -> bytes:
    return bytes(cv2.imencode(".png", np.zeros((48, 64, 3), np.uint8))[1])


PICTURE = _picture()
# Kind of detections -> the name of their file, which is next to labelled pictures.
DETECTIONS = {
    "coco-detections": "d.json",
    "jsonl": "d.jsonl",
    "csv": "d.csv",
    "mot-detections": "d.txt",
    "yolo-detections": "d",
}
LABELLED = {
    "sound/l.json": json.dumps(COCO).encode(),
    "sound/a.png": PICTURE,
    "sound/b.png": PICTURE,
    "seq/gt/gt.txt": MOT.encode(),
    "seq/img1/000001.png": PICTURE,
    "seq/img1/000002.png": PICTURE,
}


# ----------------------------------------------------------------------
# Random damage


def _tree(random: Random, value: Any, dump: Callable[[Any], str]) -> bytes:
    if random.random() < 0.75:
        return _encoded(dump(damage_tree(random, value)))
    return damage_text(random, dump(value), YAML_WORDS)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _rows(random: Random, text: str) -> bytes:
    return damage_text(random, text, CELLS)


def _yaml(value: Any) -> str:
    try:
        return str(yaml.safe_dump(value, allow_unicode=True))
    except yaml.YAMLError:
        return repr(value)


def _lines(rows: Any) -> str:
    """Return a line for each row, or one line if a damaged tree is no longer a list of rows."""
    return "".join(json.dumps(row) + "\n" for row in (rows if isinstance(rows, list) else [rows]))


PAIR = {"a.png": PICTURE, "b.png": PICTURE}


def _yolo_folder(random: Random) -> Files:
    damaged = random.randrange(3)
    return {
        "data.yaml": _tree(random, DATA, _yaml) if damaged == 0 else _encoded(_yaml(DATA)),
        "images/val/a.png": PICTURE,
        "images/val/b.png": PICTURE if damaged else b"",
        "labels/val/a.txt": _rows(random, YOLO) if damaged == 1 else YOLO.encode(),
        "labels/val/b.txt": _rows(random, YOLO) if damaged == 2 else b"",
    }


def _mot_folder(random: Random) -> Files:
    files = {
        "gt/gt.txt": _rows(random, MOT),
        "img1/000001.png": PICTURE,
        "img1/000002.png": PICTURE,
    }
    if random.random() < 0.5:
        return {**files, "seqinfo.ini": _rows(random, SEQUENCE), "gt/gt.txt": MOT.encode()}
    return {**files, "seqinfo.ini": SEQUENCE.encode()}


KINDS: dict[str, Callable[[Random], Files]] = {
    "config": lambda random: {"c.yaml": _tree(random, CONFIG, _yaml)},
    "mapping": lambda random: {"map.yaml": _tree(random, MAPPING, _yaml)},
    "description": lambda random: {"net.yaml": _tree(random, DESCRIPTION, _yaml)},
    "document": lambda random: {"session.json": _tree(random, DOCUMENT, json.dumps)},
    "names": lambda random: {"n.txt": _rows(random, NAMES)},
    "coco": lambda random: {"l.json": _tree(random, COCO, json.dumps), **PAIR},
    "yolo": _yolo_folder,
    "mot": _mot_folder,
    "coco-detections": lambda random: {"d.json": _tree(random, RESULTS, json.dumps)},
    "jsonl": lambda random: {"d.jsonl": _tree(random, LINES, _lines)},
    "csv": lambda random: {"d.csv": _rows(random, CSV)},
    "mot-detections": lambda random: {"d.txt": _rows(random, MOT)},
    "yolo-detections": lambda random: {
        "d/classes.txt": NAMES.encode(),
        "d/a.txt": _rows(random, YOLO_FOUND),
        "d/b.txt": b"",
    },
}


# ----------------------------------------------------------------------
# Named cases


def known() -> Iterator[tuple[str, Files]]:
    files = {
        "config": "c.yaml",
        "mapping": "m.yaml",
        "description": "net.yaml",
        "yolo": "data.yaml",
    }
    for name, text in TEXTS.items():
        for kind, file in files.items():
            yield f"{kind}/{name}", {file: _encoded(text) if isinstance(text, str) else text}
    for name, json_text in JSONS.items():
        yield f"coco/{name}", {"l.json": _encoded(json_text), **PAIR}
        yield f"coco-detections/{name}", {"d.json": _encoded(json_text)}
        yield f"jsonl/{name}", {"d.jsonl": _encoded(json_text)}
        yield f"document/{name}", {"session.json": _encoded(json_text)}
    yield from OTHERS.items()


def _aliases(key: str, merge: str = "") -> str:
    """Return 2 * 9^12 texts in 600 bytes: each of 12 lists has the list before it nine times."""
    lines = [f"a: &a {'{x: 1}' if merge else '[x, x]'}"]
    for before, name in zip("abcdefghijkl", "bcdefghijklm", strict=True):
        nine = ", ".join([f"*{before}"] * 9)
        lines.append(
            f"{name}: &{name} {{{merge}: [{nine}]}}" if merge else f"{name}: &{name} [{nine}]"
        )
    return "\n".join([*lines, f"{key}: *m\n"])


TEXTS: dict[str, str | bytes] = {
    "nested aliases under names": _aliases("names"),
    "nested aliases under classes": _aliases("classes"),
    "merge keys": _aliases("names", "<<"),
    "list that contains itself": "names: &a [*a]",
    "3,000 brackets": "[" * 3000,
    "3,000 brackets closed": "names: " + "[" * 3000 + "]" * 3000,
    "1,400 levels": "\n".join(" " * at + "a:" for at in range(1400)),
    "dashes": "- " * 3000,
    "digits": "conf: " + "9" * 6000,
    "hexadecimal": "conf: 0x" + "f" * 6000,
    "number in base 60": "conf: " + ":".join(["1"] * 3000),
    "a date": "names: [2001-99-99]",
    "binary": "names: !!binary aGk=",
    "python": "names: !!python/object/apply:os.system [ls]",
    "text tagged as int": "conf: !!int x",
    "text tagged as bool": "conf: !!bool x",
    "text tagged as float": "conf: !!float x",
    "a set": "names: !!set {a, b}",
    "key twice": "conf: 0.1\nconf: 0.2",
    "list as a key": "? [a]\n: 1",
    "keys of many kinds": "names: {0: a, b: c, null: d, 1.5: e}",
    "tabs": "a:\n\tb: 1",
    "NUL": b"conf: \0",
    "UTF-16": "conf: 0.5".encode("utf-16"),
    "BOM": b"\xef\xbb\xbfconf: 0.5",
    "latin": "names: [\xe9]".encode("latin-1"),
    "lone surrogate": 'names: ["\\ud800"]',
    "infinity": "conf: .inf\nbatch: .nan",
    "two documents": "a: 1\n---\nb: 2",
    "huge queue": "loop: {queue_batches: 99999999}",
    "large queue, batch and size": "loop: {queue_batches: 256}\nbatch: 1024\nsize: 8192",
    "path of 5,000 characters": "model: " + "a" * 5000,
    "name of 300 characters": "model: " + "a" * 300 + ".onnx",
    "size of 5,000 digits": "size: '" + "9" * 5000 + "'",
    "NUL in a path": 'model: "a\\0b.onnx"\npath: "a\\0b"\nval: "a\\0b"\nnames: [a]',
    "split of 300 characters": f"val: {'a' * 300}\nnames: [a]",
    "the root folder": "val: /\npath: /dev\nnames: [a]",
}
JSONS: dict[str, str] = {
    "3,000 brackets": "[" * 3000,
    "3,000 brackets closed": "[" * 3000 + "]" * 3000,
    "900 mappings": '{"a":' * 900 + "1" + "}" * 900,
    "digits": '{"images": [' + "9" * 6000 + "]}",
    "NaN": '{"images": [NaN]}',
    "infinity": '[{"image_id": Infinity}]',
    "number beyond float64": '{"images": [1e999]}',
    "lone surrogate": '{"images": ["\\ud800"]}',
    "nothing": "",
    "a number": "5",
    "null": "null",
    "BOM": "\ufeff{}",
    "NUL": "{\0}",
    "key twice": '{"images": [], "images": 5}',
}
OTHERS: dict[str, Files] = {
    "csv/a field of 200,000 characters": {
        "d.csv": CSV.encode() + b"a.png,0," + b"x" * 200_000 + b",1,1,1,1,1\n"
    },
    "csv/a quote without end": {"d.csv": CSV.encode() + b'"' + b"x\n" * 100_000},
    "csv/NUL": {"d.csv": CSV.encode() + b"a\0.png,0,car,1,1,1,2,2\n"},
    "csv/digits": {"d.csv": CSV.encode() + b"a.png," + b"9" * 6000 + b",car,1,1,1,2,2\n"},
    "jsonl/NUL in a name": {
        "d.jsonl": b'{"source": "a\\u0000.png", "frame": 0, "detections": []}\n'
    },
    "jsonl/infinite frame": {"d.jsonl": b'{"source": "a.png", "frame": 1e999, "detections": []}\n'},
    "jsonl/short box": {
        "d.jsonl": b'{"source": "a.png", "frame": 0, "detections": [{"box": [1], "score": 1, '
        b'"class": "a"}]}\n'
    },
    "jsonl/huge box": {
        "d.jsonl": b'{"source": "a.png", "frame": 0, "detections": [{"box": [1,1,1e300,1e300], '
        b'"score": 1, '
        b'"class": "a"}]}\n'
    },
    "mot/frame 10^12": {
        "gt/gt.txt": b"1000000000000,1,1,1,1,1,1,1,1\n",
        "img1/000001.png": PICTURE,
    },
    "mot/length 10^12": {
        "gt/gt.txt": MOT.encode(),
        "img1/000001.png": PICTURE,
        "img1/000002.png": PICTURE,
        "seqinfo.ini": SEQUENCE.replace("seqLength=2", "seqLength=1000000000000").encode(),
    },
    "mot/length of 6,000 digits": {
        "gt/gt.txt": MOT.encode(),
        "seqinfo.ini": f"[Sequence]\nseqLength={'9' * 6000}\n".encode(),
    },
    "mot/folder of 300 characters": {
        "gt/gt.txt": MOT.encode(),
        "seqinfo.ini": f"[Sequence]\nimDir={'a' * 300}\n".encode(),
    },
    "mot/interpolation": {
        "gt/gt.txt": MOT.encode(),
        "seqinfo.ini": b"[Sequence]\nname=%(name)s\nimDir=%(x)s\n",
    },
    "names/a megabyte": {"n.txt": b"x" * (1 << 20)},
    "names/escapes": {"n.txt": b"a\x1b[2J\nb\n"},
    "names/latin": {"n.txt": b"\xe9\nb\n"},
    "names/empty": {"n.txt": b""},
}
