"""The house's rules, read from the source: imports point down, no room of leftovers, no endless
file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "detector"

# Highest first: the floors of ARCHITECTURE.md. A room imports what stands on a lower floor, and
# itself; rooms on one floor do not know each other. There are no exceptions.
LEVELS = [
    ("__main__",),
    ("cli",),
    ("api", "jobs"),
    ("run", "report", "page"),
    ("config", "analysis"),
    ("engines", "datasets", "live"),
    ("models", "sources", "sinks", "loop", "session"),
    ("stages", "timeline"),
    ("types", "errors"),
    ("__init__",),
]
ONLY = {  # all that a room may import of ours, where it is less than everything below it
    "loop": {"stages", "timeline", "types"},
    "analysis": {"session", "timeline", "types", "errors", "__init__"},
    "report": {"analysis", "session", "timeline", "types", "errors"},
    "engines": {"models", "types", "errors", "__init__"},
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
LONGEST = 700  # lines: a file is one whole thought, and a thought has an end
MOST_NAMES = 20  # at the top of the package, but for __init__, __main__ and py.typed

RANK = {room: rank for rank, rooms in enumerate(LEVELS) for room in rooms}


@cache
def import_nodes(file: Path, _: int) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, wherever they stand. Read once for all tests of this module."""
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(file: Path, package: Path) -> list[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, by its full name; with the line.

    Relative ones are resolved.
    """
    here = [package.name, *file.relative_to(package).with_suffix("").parts]
    found: list[tuple[str, int]] = []
    for node in import_nodes(file, file.stat().st_mtime_ns):
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
    other = rest.split(".")[0].replace("__version__", "__init__")
    if other not in RANK:
        return None if room == "__init__" or not other else f"{other} has no place in LEVELS"
    if (
        other == room or room == "__init__"
    ):  # the package's own list of names may point anywhere, lazily
        return None
    if room in ONLY and other not in ONLY[room]:
        return f"{room} must not import {other}"
    if RANK[other] > RANK[room]:
        return None
    where = "beside" if RANK[other] == RANK[room] else "above"
    return f"{room} must not import {other}: it stands {where} it"


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


def circles(package: Path) -> list[list[str]]:
    """Files that import each other, directly or by way of others, anywhere in them: the strongly
    connected parts.
    """
    files = {}
    for file in package.rglob("*.py"):
        name = ".".join([package.name, *file.relative_to(package).with_suffix("").parts])
        files[name.removesuffix(".__init__")] = file
    arrows = {name: set(targets(file, package, files)) - {name} for name, file in files.items()}
    reach = {name: reachable(name, arrows) for name in arrows}
    found = {frozenset(other for other in reach[name] if name in reach[other]) for name in arrows}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def targets(file: Path, package: Path, files: dict[str, Path]) -> Iterator[str]:
    """The files that a file imports:

    ``from detector.engines import store`` is store.py, not the package.
    """
    for node in import_nodes(file, file.stat().st_mtime_ns):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in files:
                    yield whole
                elif node.module in files and node.module != package.name:
                    yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)


def reachable(start: str, arrows: dict[str, set[str]]) -> set[str]:
    """Whatever can be reached from ``start`` along arrows; ``start`` itself only by a circle."""
    seen: set[str] = set()
    left = [start]
    while left:
        for name in arrows[left.pop()] - seen:
            seen.add(name)
            left.append(name)
    return seen


def test_the_house() -> None:
    assert check(PACKAGE) == []


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert circles(PACKAGE) == []


def test_circles_are_found(tmp_path: Path) -> None:
    made = tmp_path / "detector"
    made.mkdir()
    (made / "__init__.py").write_text("")
    (made / "a.py").write_text("from detector.b import x")
    (made / "b.py").write_text("def f():\n    from detector import c")  # hidden inside
    (made / "c.py").write_text("import detector.a")
    (made / "d.py").write_text("import detector.a")
    assert circles(made) == [["detector.a", "detector.b", "detector.c"]]


def test_the_top_of_the_package_stays_small() -> None:
    names = {path.stem for path in PACKAGE.iterdir() if path.name != "py.typed"}
    assert len(names - {"__init__", "__main__", "__pycache__"}) <= MOST_NAMES
    assert len(LEVELS) <= 10


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("loop/sync.py", "from detector.timeline import span", None),
        (
            "loop/sync.py",
            "from detector.engines.ort import OrtEngine",
            "loop must not import engines",
        ),
        (
            "loop/sync.py",
            "from ..sources import open_source",
            "loop must not import sources",
        ),  # relative
        (
            "loop/sync.py",
            "from detector import sinks",
            "loop must not import sinks",
        ),  # the module as a name
        ("loop/sync.py", "from detector.models.base import Network", "loop must not import models"),
        ("sinks/video.py", "def f():\n    from detector.timeline import span", None),  # downwards
        (
            "engines/ort.py",
            "from detector.stages import nms",
            "engines must not import stages",
        ),  # no decoding there
        (
            "stages/nms.py",
            "def f():\n    import detector.loop.sync",
            "stages must not import loop",
        ),  # hidden inside
        (
            "sinks/video.py",
            "from detector.loop import sync",
            "sinks must not import loop: it stands beside it",
        ),
        ("engines/ort.py", "from detector.engines.base import Engine", None),  # its own room
        (
            "engines/ort.py",
            "from detector.models.base import Network",
            None,
        ),  # a graph is what it runs
        (
            "models/darknet.py",
            "from detector.engines import base",
            "models must not import engines: it stands above",
        ),
        (
            "analysis/ledger.py",
            "import numpy, onnxruntime.tools",
            "analysis must not import onnxruntime",
        ),
        (
            "analysis/ledger.py",
            "from detector.run.detect import detect",
            "analysis must not import run",
        ),
        (
            "report/terminal.py",
            "from detector.run.detect import detect",
            "report must not import run",
        ),
        ("report/terminal.py", "import rich.table", None),
        ("types.py", "from detector.errors import UsageError", "types must not import errors"),
        (
            "config/levels.py",
            "from detector.cli import main",
            "config must not import cli: it stands above it",
        ),
        ("cli/detect.py", "from detector.run.detect import detect", None),
        ("sinks/utils.py", "", "name it for what it is about"),
        ("cupboard/things.py", "", "cupboard has no place in LEVELS"),
        (
            "config/levels.py",
            "from detector.cupboard import things",
            "cupboard has no place in LEVELS",
        ),
        ("config/levels.py", "\n" * 701, "701 lines, more than 700"),
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
