"""The house's rules, read from the source: imports point down, no room of leftovers, no endless file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "detector"

# Highest first. A room imports what stands below it, and itself. Rooms on one line do not know each other, but for
# the pairs in NEIGHBOURS.
LEVELS = [
    ("__main__",),
    ("cli",),
    ("api", "passes", "report", "doctor", "compare"),
    ("run", "evaluation", "parity", "build"),
    ("assembly",),  # a source, a machine and sinks, put together for the loop
    ("machine",),  # what run and api both open: network and engine, once for all sources
    ("variants",),  # a network as an engine wants it: converted, quantised, built
    ("quantize",),  # int8: calibration on frames of a source, and what must stay float
    ("analysis",),  # pure functions, so that whoever wants facts may ask: a run's summary, the search for int8
    ("layers", "outputs", "measured"),  # from options to a configuration; to file names; what auto takes here
    ("loop", "engines", "sources", "sinks", "models", "session", "artefacts", "config", "datasets", "classmap"),
    ("stages", "timeline"),
    ("environment", "interrupts", "nvidia"),
    ("types", "errors", "version"),
    ("__init__",),
]
NEIGHBOURS = {
    ("evaluation", "run"),  # a dataset goes through the run's own loop
    ("passes", "compare"),  # a sweep is a comparison
    ("engines", "models"),  # an engine is given a Network
    ("artefacts", "models"),  # and so is the store of built files
}
ONLY = {  # all that a room may import of ours, where it is less than everything below it
    "loop": {"stages", "timeline", "types"},
    "analysis": {"session", "timeline", "types", "errors", "version"},
    "report": {"analysis", "session", "types", "errors"},
    "engines": {"models", "nvidia", "types", "errors", "version"},
    "types": set(),
    "errors": set(),
}
NEVER = {  # libraries that a room does not touch, not even inside a function
    "analysis": {"torch", "cv2", "onnx", "onnxruntime", "openvino", "tensorrt", "av"},
    "report": {"torch", "cv2", "onnx", "onnxruntime", "openvino", "tensorrt", "av"},
    "engines": {"cv2", "av", "click", "rich"},
    "loop": {"torch", "cv2", "onnx", "onnxruntime", "openvino", "tensorrt", "av"},
    "cli": {"torch", "cv2", "onnx", "onnxruntime", "openvino", "tensorrt", "av"},
    "stages": {"torch", "onnx", "onnxruntime", "openvino", "tensorrt", "av", "threading", "time"},
}
LEFTOVERS = {"utils", "util", "helpers", "common", "misc", "manager", "tools"}
LONGEST = 400  # lines

RANK = {room: rank for rank, rooms in enumerate(LEVELS) for room in rooms}


def imports(file: Path, package: Path) -> list[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, by its full name; with the line. Relative ones are resolved."""
    here = [package.name, *file.relative_to(package).with_suffix("").parts]
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == package.name:  # from detector import sources: the names are the modules
                found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((module, node.lineno))
    return found


def room_of(file: Path, package: Path) -> str:
    return file.relative_to(package).with_suffix("").parts[0]


def complaint(room: str, name: str, package: str) -> str | None:
    """What is wrong with this room importing that module; None if nothing is."""
    top, _, rest = name.partition(".")
    if top != package:
        return f"{room} must not import {top}" if top in NEVER.get(room, ()) else None
    other = rest.split(".")[0]
    if other not in RANK:
        return None if room == "__init__" or not other else f"{other} has no place in LEVELS"
    if other == room or room == "__init__":  # the package's own list of names may point anywhere, lazily
        return None
    if room in ONLY and other not in ONLY[room]:
        return f"{room} must not import {other}"
    if RANK[other] > RANK[room] or (room, other) in NEIGHBOURS:
        return None
    return f"{room} must not import {other}: it stands {'beside' if RANK[other] == RANK[room] else 'above'} it"


def check(package: Path) -> list[str]:
    problems = []
    for file in sorted(package.rglob("*.py")):
        place, room = file.relative_to(package.parent), room_of(file, package)
        length = len(file.read_text(encoding="utf-8").splitlines())
        if length > LONGEST:
            problems.append(f"{place}: {length} lines, more than {LONGEST}")
        if LEFTOVERS & set(file.relative_to(package).with_suffix("").parts):
            problems.append(f"{place}: name it for what it is about")
        if room not in RANK:
            problems.append(f"{place}: {room} has no place in LEVELS")
            continue
        for name, line in imports(file, package):
            if wrong := complaint(room, name, package.name):
                problems.append(f"{place}:{line}: {wrong}")
    return problems


def test_the_house() -> None:
    assert check(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("loop/sync.py", "from detector.timeline import span", None),
        ("loop/sync.py", "from detector.engines.ort import OrtEngine", "loop must not import engines"),
        ("loop/sync.py", "from ..sources import open_source", "loop must not import sources"),  # relative
        ("loop/sync.py", "from detector import sinks", "loop must not import sinks"),  # the module as a name
        ("loop/sync.py", "from detector.models.base import Network", "loop must not import models"),
        ("sinks/video.py", "def f():\n    from detector.timeline import span", None),  # downwards
        ("engines/ort.py", "from detector.stages import nms", "engines must not import stages"),  # no decoding there
        ("stages/nms.py", "def f():\n    import detector.loop.sync", "stages must not import loop"),  # hidden inside
        ("sinks/video.py", "from detector.loop import sync", "sinks must not import loop: it stands beside it"),
        ("engines/ort.py", "from detector.engines.base import Engine", None),  # its own room
        ("engines/ort.py", "from detector.models.base import Network", None),  # the pair that is allowed
        ("models/darknet.py", "from detector.engines import base", "models must not import engines"),  # not both ways
        ("analysis/ledger.py", "import numpy, onnxruntime.tools", "analysis must not import onnxruntime"),
        ("analysis/ledger.py", "from detector.run import detect", "analysis must not import run"),
        ("report/terminal.py", "from detector.run import detect", "report must not import run"),
        ("report/terminal.py", "import rich.table", None),
        ("types.py", "from detector.errors import UsageError", "types must not import errors"),
        ("config.py", "from detector.cli import main", "config must not import cli: it stands above it"),
        ("cli/detect.py", "from detector.run import detect", None),
        ("sinks/utils.py", "", "name it for what it is about"),
        ("cupboard/things.py", "", "cupboard has no place in LEVELS"),
        ("config.py", "from detector.cupboard import things", "cupboard has no place in LEVELS"),
        ("config.py", "\n" * 401, "401 lines, more than 400"),
    ],
)
def test_the_checker(tmp_path: Path, file: str, text: str, expected: str | None) -> None:
    made = tmp_path / "detector" / file
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(text)
    problems = check(tmp_path / "detector")
    if expected is None:
        assert problems == []
    else:
        assert len(problems) == 1
        assert expected in problems[0]
