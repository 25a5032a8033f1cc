"""The texts of ``texts.py``: YAML, JSON, CSV and rows of labels, damaged or hostile."""

import json
from functools import cache
from random import Random

from tests.attacks import texts
from tests.attacks.case import Case, Kind
from tests.attacks.inputs import ENGINES, content

# These flags override the damaged config, whose paths could lead out of the case's folder.
RUN = ("in.mp4", "--engine", "null", *ENGINES, "-o", "out/", "--run-dir", "mine", "--frames", "2")
NULL = ("--model", "dots.onnx", "--engine", "null", *ENGINES)
MODEL_CODES = frozenset({0, 2, 4})
EVAL_CODES = frozenset({0, 2, 3, 4, 7, 8})


@cache
def _named() -> list[tuple[str, texts.Files]]:
    return list(texts.known())


def make(random: Random) -> Case:
    if random.random() < 0.1:
        name, files = random.choice(_named())
    else:
        name, files = next(texts.cases(random.randrange(2**32)))
    kind, first = name.partition("/")[0], next(iter(files))
    if kind in ("config", "names"):
        files = {**files, "in.mp4": content("in.mp4"), "dots.onnx": content("dots.onnx")}
        argv = (*RUN, f"--{kind}", first, "--model", "dots.onnx")
        return Case(files, argv, MODEL_CODES)
    if kind == "description":
        more = random.choice((["--weights", "m.pt"], ["--random-weights", "1"]))
        argv = ("models", "show", first, *more, "--size", "64", "--json")
        return Case({**files, "m.pt": content("state.pt")}, argv, MODEL_CODES)
    if kind == "document":
        argv = ("report", "run", "--format", "json", "-o", "-")
        return Case({"run/session.json": files[first]}, argv, frozenset({0, 2}))
    return _evaluate(random, kind, first, files)


def _evaluate(random: Random, kind: str, first: str, files: texts.Files) -> Case:
    argv = ["eval", "sound/l.json", "--detections", "d.json"]
    if kind == "mapping":
        argv += ["--mapping", first]
    elif kind in texts.DETECTIONS:
        dataset = "seq" if kind == "mot-detections" else "sound/l.json"
        argv = ["eval", dataset, "--detections", texts.DETECTIONS[kind]]
        argv += ["--names", "n.names"] if kind == "mot-detections" else []
    else:
        argv = ["eval", "l.json" if kind == "coco" else ".", *NULL]
    files = {**_labelled(), **files}
    if random.random() < 0.1:
        del files[random.choice([name for name in files if name != "dots.onnx"])]
    argv += random.choice(([], [], ["--json"], ["--format", "coco"], ["--format", "voc"]))
    return Case(files, tuple(argv), EVAL_CODES)


@cache
def _labelled() -> dict[str, bytes]:
    return {
        **texts.LABELLED,
        "d.json": json.dumps(texts.RESULTS).encode(),
        "n.names": b"person\nvehicle\ncar\n",
        "dots.onnx": content("dots.onnx"),
    }


KIND = Kind("texts", make, share=20)
