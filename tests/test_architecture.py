"""CONTRIBUTING.md and each ARCHITECTURE.md match the source. A map is a wing's ARCHITECTURE.md."""

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT
from tests.test_house import LEVELS, PACKAGE, WINGS

ARCHITECTURE = (CHECKOUT / "ARCHITECTURE.md").read_text(encoding="utf-8")
CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAPS = {wing: (PACKAGE / wing / "ARCHITECTURE.md").read_text(encoding="utf-8") for wing in WINGS}
RECIPES = ("engine", "source", "sink", "model family", "pass", "command")
# Matches `engines/store.py` and `sinks/video/`, but not placeholders such as NAME.
PLACE = re.compile(r"`([a-z_.]+(?:/[a-z_0-9.]+)*(?:/|\.py|\.md|\.yaml))`")


# In docstrings: the path of a file, and a name of a module or class, as in ``loop.parts.Parts``.
FILE = re.compile(r"(?<![\w/.*-])((?:[\w-]+/)*_?[a-z]\w*\.py)\b")
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)`")
FOREIGN = {"cv2", "cuda", "ImageOps", "nn", "nvtx", "openvino", "PIL", "scipy", "torch"}
ENDINGS = {"json", "md", "mp4", "py", "sqlite", "txt", "yaml"}


def names_in(tree: ast.AST) -> set[str]:
    """Return the names that a file defines, imports or sets."""
    keys = ("name", "id", "attr", "asname")
    nodes = (
        node for node in ast.walk(tree) if not isinstance(getattr(node, "ctx", None), ast.Load)
    )
    return {value for node in nodes for key in keys if (value := getattr(node, key, None))}


def docstrings(tree: ast.AST) -> str:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


def unresolved(text: str, names: Mapping[str, set[str]]) -> list[str]:
    """Return the dotted names in a text that do not exist. ``names``: module -> its names. A name
    begins with a module or a class, or with a placeholder in capitals."""
    unknown = []
    for word in NAME.findall(text):
        parts = word.split(".")
        if parts[0].isupper() or parts[-1] in ENDINGS or parts[0] in FOREIGN:
            continue
        ours = any(
            module.endswith(f".{'.'.join(parts[:at])}") and set(parts[at : at + 1]) <= has
            for at in range(1, len(parts) + 1)
            for module, has in names.items()
        ) or any({*parts[:2]} <= has for has in names.values())
        if not ours and parts[0] not in sys.stdlib_module_names:
            unknown.append(word)
    return unknown


def floors(text: str) -> list[tuple[str, ...]]:
    """Return the rooms of each floor in the table."""
    rows = re.findall(r"^\| \d+ \| (`.*) \|$", text, re.MULTILINE)
    return [tuple(re.findall(r"`([a-z]+)(?:/|\.py)`", row)) for row in rows]


def missing(text: str, folder: Path = PACKAGE / "core") -> list[str]:
    """Return the paths in a text that do not exist. A path may omit ``detector/`` and the folder
    that the text is about."""
    paths = sorted(set(PLACE.findall(text)))
    return [p for p in paths if not any((at / p).exists() for at in (folder, PACKAGE, CHECKOUT))]


def test_architecture_page_lists_every_room_on_its_floor():
    assert floors(ARCHITECTURE) == LEVELS["core"]
    rooms = {path.stem for path in (PACKAGE / "core").iterdir() if path.stem[0] != "_"}
    assert {room for floor in LEVELS["core"] for room in floor} == rooms


def test_tables_of_rooms_are_up_to_date():
    done = subprocess.run(
        [sys.executable, CHECKOUT / "scripts/places", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("wing", WINGS)
def test_files_named_in_the_map_of_a_wing_exist(wing):
    assert missing(MAPS[wing], PACKAGE / wing) == []


@pytest.mark.slow
def test_names_in_docstrings_and_maps_exist():
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in PACKAGE.rglob("*.py")}
    modules = {
        ".detector." + ".".join(file.relative_to(PACKAGE).with_suffix("").parts): names_in(tree)
        for file, tree in trees.items()
    }
    modules = {name.removesuffix(".__init__"): has for name, has in modules.items()}
    wrong = [(page, unresolved(text, modules)) for page, text in MAPS.items()]
    wrong.append(("ARCHITECTURE.md", unresolved(ARCHITECTURE, modules)))
    for file, tree in trees.items():
        text = docstrings(tree)
        places = {file.parent, *file.parents, PACKAGE / "core"} - {Path("/")}
        gone = [one for one in FILE.findall(text) if not any((at / one).exists() for at in places)]
        gone = [one for one in gone if not one[0].isupper()]
        wrong.append((str(file.relative_to(PACKAGE)), gone + unresolved(text, modules)))
    assert [one for one in wrong if one[1]] == []


def test_maps_are_short():
    assert len(ARCHITECTURE.split()) <= 1500
    assert all(len(text.split()) <= 600 for text in MAPS.values())


@pytest.mark.parametrize("text", [ARCHITECTURE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_files_named_in_the_pages_exist(text):
    assert missing(text) == []


@pytest.mark.parametrize("kind", RECIPES)
def test_contributing_has_a_recipe_for_each_kind(kind):
    assert re.search(rf"^\*\*An? {kind}\*\*", CONTRIBUTING, re.MULTILINE)


def test_check_finds_missing_files_and_names():
    assert missing("`engines/gone.py` and `sinks/` and `detector/nowhere/`") == [
        "detector/nowhere/",
        "engines/gone.py",
    ]
    names = {".core.loop.parts": {"Parts", "arrive"}}
    text = "`Parts.arrive`, `parts.Parts`, `wire.Parts`, `parts.gone`, `json.dumps`, `NAME.json`"
    assert unresolved(text, names) == ["wire.Parts", "parts.gone"]
    assert FILE.findall("``wire.py`` and lab/audit/read.py") == ["wire.py", "lab/audit/read.py"]
    assert floors("| 3 | `jobs/`, `api/` |\n| 9 | `types.py` |") == [("jobs", "api"), ("types",)]
