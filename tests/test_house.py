"""Rules for the source: files have good names and a limited length. A room (a folder or module
directly in the core or in a wing) imports only rooms on lower floors of ARCHITECTURE.md.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "detector"

WINGS = ("lab", "live", "batch", "tracks")
# The floors of the core and of the lab, highest first, as in ARCHITECTURE.md. A room imports only
# rooms on lower floors, none on its own floor. A wing imports the core, but no other wing.
LEVELS = {
    "core": [
        ("commands",),
        ("cli", "api", "jobs"),
        ("run", "terminal"),
        ("config", "analysis"),
        ("engines",),
        ("models", "sources", "sinks", "loop", "session"),
        ("http", "stages", "tables", "timeline"),
        ("wings", "types", "errors"),
    ],
    "lab": [
        ("commands",),
        ("tune",),
        ("terminal", "profile"),
        ("report", "compare"),
        ("evaluate", "peaks", "why"),
        ("analysis", "audit"),
        ("datasets", "session"),
        ("wing",),
    ],
}
ALLOWED_ROOMS = {  # room -> the only rooms of the core that it may import
    "core/loop": {"stages", "timeline", "types"},
    "core/analysis": {"session", "tables", "timeline", "types", "errors"},
    "core/terminal": {"analysis", "session", "tables", "timeline", "types", "errors"},
    "core/engines": {"models", "types", "errors", "wings"},
    "core/types": set(),
    "core/errors": set(),
    "lab/analysis": {"analysis", "session", "timeline", "types", "errors"},
    "lab/report": {"analysis", "session", "tables", "timeline", "types", "errors", "wings"},
}
ENGINES = {"torch", "onnx", "onnxruntime", "openvino", "tensorrt"}
FORBIDDEN_LIBRARIES = {  # libraries that a room must not import, not even inside a function
    "core/analysis": {*ENGINES, "cv2", "av"},
    "core/terminal": {*ENGINES, "cv2", "av"},
    "core/engines": {"cv2", "av", "click", "rich"},
    "core/loop": {*ENGINES, "cv2", "av"},
    "core/commands": {*ENGINES, "cv2", "av"},
    "core/cli": {*ENGINES, "cv2", "av"},
    "core/stages": {*ENGINES, "av", "threading", "time"},
    "lab/analysis": {*ENGINES, "cv2", "av"},
    "lab/report": {*ENGINES, "cv2", "av"},
    "lab/commands": {*ENGINES, "cv2", "av"},
    "batch/commands": {*ENGINES, "cv2", "av"},
}
# Words that belong to wings -> files of the core that still contain them. Do not add files.
WING_WORDS = {
    rf"detector\.({'|'.join(WINGS)})": "",
    "bytetrack|ocsort": "api/__init__ cli/translating config/elsewhere",
    "infer_every": "api/__init__ api/options api/results",
    "Zone(Book|Count|Event)|Scene": "",
    "mqtt|webhook": "",
    "Hub|Roster|home_assistant": "",
    "slurm|ray|pyarrow": "",
    "roofline": "",
}
BANNED_NAMES = {"utils", "util", "helpers", "common", "misc", "manager", "tools"}
LONGEST = 700  # lines of a file
TOP = {"core", *WINGS}  # allowed next to __init__, __main__ and py.typed

RANK = {
    f"{wing}/{room}": rank
    for wing, floors in LEVELS.items()
    for rank, rooms in enumerate(floors)
    for room in rooms
} | {wing: len(floors) for wing, floors in LEVELS.items()}  # WING/__init__.py is below all rooms


@cache
def nodes_of(file: Path, _: int) -> list[ast.Import | ast.ImportFrom | ast.ClassDef]:
    """Return the imports and classes of a file, cached for all tests of this module."""
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    kinds = ast.Import | ast.ImportFrom | ast.ClassDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def imports(file: Path, package: Path) -> list[tuple[str, int]]:
    """Return (full name, line) of everything that a file imports, also inside functions.

    Relative imports are resolved; imports for type checkers count, too.
    """
    here = [package.name, *file.relative_to(package).with_suffix("").parts]
    names: list[tuple[str, int]] = []
    for node in nodes_of(file, file.stat().st_mtime_ns):
        if isinstance(node, ast.Import):
            names += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return names


def room_of(file: Path, package: Path) -> str:
    wing, *rest = file.relative_to(package).with_suffix("").parts
    return f"{wing}/{rest[0]}" if wing in LEVELS and rest[0] != "__init__" else wing


def complaint(room: str, name: str, package: str) -> str | None:
    top, _, rest = name.partition(".")
    wing = room.split("/")[0]
    if top != package:
        return f"{room} must not import {top}" if top in FORBIDDEN_LIBRARIES.get(room, ()) else None
    other_wing, _, inside = rest.partition(".")
    other_room = ("" if inside.startswith("__") else inside).split(".")[0]
    if other_wing not in TOP:
        return f"{other_wing} is neither the core nor a wing"
    if other_wing not in ("core", wing):
        return f"{wing} must not import {other_wing}"
    other = f"{other_wing}/{other_room}" if other_room else other_wing
    if other_wing in LEVELS and other not in RANK:
        return f"{other} has no place in LEVELS"
    if other == room:
        return None
    if (
        other_wing == "core"
        and other_room
        and room in ALLOWED_ROOMS
        and other_room not in ALLOWED_ROOMS[room]
    ):
        return f"{room} must not import {other}"
    if other_wing != wing or wing not in LEVELS or RANK[other] > RANK[room]:
        return None
    where = "on the same level" if RANK[other] == RANK[room] else "on a higher level"
    return f"{room} must not import {other}: it is {where}"


def check(package: Path) -> list[str]:
    problems = []
    for file in sorted(package.rglob("*.py")):
        place, room = file.relative_to(package.parent), room_of(file, package)
        length = len(file.read_text(encoding="utf-8").splitlines())
        if length > LONGEST:
            problems.append(f"{place}: {length} lines, more than {LONGEST}")
        if BANNED_NAMES & set(file.relative_to(package).with_suffix("").parts):
            problems.append(f"{place}: name it for what it is about")
        if room.split("/")[0] not in TOP | {"__init__", "__main__"}:
            problems.append(f"{place}: {room} is neither the core nor a wing")
            continue
        if "/" in room and room not in RANK:
            problems.append(f"{place}: {room} has no place in LEVELS")
            continue
        for name, line in imports(file, package):
            if wrong := complaint(room, name, package.name):
                problems.append(f"{place}:{line}: {wrong}")
    return problems


def circles(package: Path) -> list[list[str]]:
    """Return groups of files that import each other, directly or indirectly."""
    files = {}
    for file in package.rglob("*.py"):
        name = ".".join([package.name, *file.relative_to(package).with_suffix("").parts])
        files[name.removesuffix(".__init__")] = file
    imported = {name: set(targets(file, package, files)) - {name} for name, file in files.items()}
    reach = {name: reachable(name, imported) for name in imported}
    found = {frozenset(other for other in reach[name] if name in reach[other]) for name in imported}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def targets(file: Path, package: Path, files: dict[str, Path]) -> Iterator[str]:
    """Yield the files that a file imports.

    ``from detector.core.engines._built import store`` imports store.py, not __init__.py.
    """
    for name, _ in imports(file, package):
        home = name if name in files else name.rpartition(".")[0]
        if home in files:
            yield home


def reachable(start: str, imported: dict[str, set[str]]) -> set[str]:
    """Return the files that ``start`` imports, directly or not; in a cycle, ``start`` is one."""
    reached: set[str] = set()
    pending = [start]
    while pending:
        for name in imported[pending.pop()] - reached:
            reached.add(name)
            pending.append(name)
    return reached


def test_imports_and_names_follow_the_rules() -> None:
    assert check(PACKAGE) == []
    assert circles(PACKAGE) == [], "circular imports"


def test_circular_imports_are_found(tmp_path: Path) -> None:
    package_ = tmp_path / "detector"
    package_.mkdir()
    (package_ / "__init__.py").write_text("")
    (package_ / "a.py").write_text("from detector.b import x")
    (package_ / "b.py").write_text("def f():\n    from detector import c")  # in a function
    (package_ / "c.py").write_text("if TYPE_CHECKING:\n    import detector.a")
    (package_ / "d.py").write_text("import detector.a")
    assert circles(package_) == [["detector.a", "detector.b", "detector.c"]]
    (package_ / "__init__.py").write_text("from .d import x\n__version__ = '1'")
    (package_ / "a.py").write_text("from detector import __version__")
    assert circles(package_) == [["detector", "detector.a", "detector.d"]]


def test_class_names_of_the_core_are_unique() -> None:
    """The exception: a subclass may have its base's name, like the API's ``Detections``."""
    homes: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in nodes_of(file, file.stat().st_mtime_ns):
            if isinstance(node, ast.ClassDef):
                name, bases = node.name.lstrip("_"), [ast.unparse(base) for base in node.bases]
                if name not in [base.split(".")[-1] for base in bases]:
                    homes.setdefault(name, []).append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    shared = [[name, *found] for name, found in homes.items() if len(found) > 1]
    assert [found for found in shared if "core/" in str(found)] == []


def test_package_has_only_the_core_and_the_wings() -> None:
    names = {path.stem for path in PACKAGE.iterdir() if path.name != "py.typed"}
    assert names - {"__init__", "__main__", "__pycache__"} == TOP
    assert all(len(floors) <= 8 for floors in LEVELS.values())


def test_all_python_programs_are_linted() -> None:
    """ruff recognises files by suffix, so its settings must list the files without a suffix."""
    root = PACKAGE.parent
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    programs = {
        str(file.relative_to(root))
        for folder in ("scripts", "training")
        for file in (root / folder).iterdir()
        if file.is_file() and not file.suffix and b"python" in file.read_bytes().partition(b"\n")[0]
    }
    assert programs == set(settings["tool"]["ruff"]["extend-include"])


@pytest.mark.parametrize(("words", "places"), WING_WORDS.items())
def test_core_does_not_use_words_of_the_wings(words: str, places: str) -> None:
    core, pattern = PACKAGE / "core", re.compile(rf"\b({words})\b")
    found = {
        file.relative_to(core).as_posix().removesuffix(".py")
        for file in core.rglob("*.py")
        if pattern.search(file.read_text(encoding="utf-8"))
    }
    assert found == set(places.split())


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("core/loop/sync.py", "from detector.core.timeline import span", None),
        ("core/loop/sync.py", "from ..sources import base", "must not import core/sources"),
        ("core/sinks/video.py", "from detector.core.loop import sync", "it is on the same level"),
        (  # in a function
            "core/stages/nms.py",
            "def f():\n    import detector.core.loop.sync",
            "core/stages must not import core/loop",
        ),
        (  # only for type checkers
            "core/wings.py",
            "if TYPE_CHECKING:\n    from detector.core.config.schema import Config",
            "core/wings must not import core/config: it is on a higher level",
        ),
        ("core/engines/ort.py", "from detector.core import __version__", None),
        ("core/engines/ort.py", "from detector import __version__", "neither the core nor a wing"),
        ("__init__.py", "from detector.live.hub import Hub", "__init__ must not import live"),
        ("core/analysis/ledger.py", "import onnxruntime.tools", "must not import onnxruntime"),
        ("lab/analysis/ledger.py", "from detector.core.run import detect", "import core/run"),
        ("live/run.py", "from detector.lab.report import html", "live must not import lab"),
        ("live/run.py", "from detector.live.hub import Hub", None),
        ("core/sinks/utils.py", "", "name it for what it is about"),
        ("cupboard/things.py", "", "cupboard is neither the core nor a wing"),
        ("core/cupboard/things.py", "", "core/cupboard has no place in LEVELS"),
        ("core/run/x.py", "from detector.core.cupboard import things", "cupboard has no place"),
        ("core/config/levels.py", "\n" * 701, "701 lines, more than 700"),
    ],
)
def test_check_finds_each_violation(
    tmp_path: Path, file: str, text: str, expected: str | None
) -> None:
    package_ = tmp_path / "detector" / file
    package_.parent.mkdir(parents=True, exist_ok=True)
    package_.write_text(text)
    problems = check(tmp_path / "detector")
    if expected is None:
        assert problems == []
    else:
        assert len(problems) == 1
        assert expected in problems[0]
