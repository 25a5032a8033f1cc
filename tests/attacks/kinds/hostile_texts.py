"""YAML, JSON, CSV and rows of labels of ``texts.py``: aliases that multiply, depth, wild values."""

from __future__ import annotations

import json
from functools import cache
from random import Random

from tests.attacks import texts
from tests.attacks.case import HANDLED, Case, Kind
from tests.attacks.inputs import ENGINES, content

# Flags win over a file, so that a damaged output cannot lead out of the case's folder.
RUN = ("in.mp4", "--engine", "null", *ENGINES, "-o", "out/", "--run-dir", "mine", "--frames", "2")
NAMED = ("--names", "n.names")


@cache
def _known() -> list[tuple[str, texts.Files]]:
    return list(texts.known())


def make(random: Random) -> Case:
    if random.random() < 0.15:
        name, files = random.choice(_known())
    else:
        name, files = next(texts.cases(random.randrange(2**32)))
    kind, first = name.partition("/")[0], next(iter(files))
    files = {**files, "in.mp4": content("in.mp4"), "dots.onnx": content("dots.onnx")}
    model = ("--model", "dots.onnx")
    argv: tuple[str, ...]
    if kind == "config":
        argv = (*RUN, "--config", first, *model)
    elif kind == "names":
        argv = (*RUN, *model, "--names", first)
    elif kind == "description":
        argv = ("models", "show", first, "--random-weights", "1", "--json")
    elif kind == "mapping":
        argv = ("eval", "sound/l.json", "--detections", "d.json", "--mapping", first)
    elif kind == "document":
        files = {**files, "run/session.json": files[first]}
        argv = ("report", "run", "--format", "json", "-o", "-")
    elif kind in texts.DETECTIONS:
        dataset = "seq" if kind == "mot-detections" else "sound/l.json"
        argv = ("eval", dataset, "--detections", texts.DETECTIONS[kind])
        argv = (*argv, *NAMED) if kind == "mot-detections" else argv
    else:
        argv = ("eval", "l.json" if kind == "coco" else ".", *model, "--engine", "null", *ENGINES)
    if argv[0] == "eval":
        files = {**_labelled(), **files}
    return Case(files, argv, HANDLED)


@cache
def _labelled() -> dict[str, bytes]:
    return {
        **texts.LABELLED,
        "d.json": json.dumps(texts.RESULTS).encode(),
        "n.names": b"person\nvehicle\ncar\n",
    }


KIND = Kind("hostile texts", make, share=6)
