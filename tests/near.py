"""Find the test files that see a change, for ``scripts/test --changed`` and ``scripts/mutate``.

    python -m tests.near --changed REVISION
    python -m tests.near --wing lab

Tests see a change if they import the changed code or are in the test folder of its package. This is
for quick checks during work; only the full run covers code that the change affects indirectly.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
WINGS = ("lab", "live", "batch", "tracks")
# Tests that check all source files, and tests that check all pages.
HOUSE_TESTS = tuple(
    TESTS / f"test_{name}.py" for name in ("house", "wings", "sizes", "architecture")
)
PAGE_TESTS = (TESTS / "cli/test_docs.py",)
CONFORMANCE = ("sinks", "engines", "sources", "stages", "models")
# Prefix of a path in the checkout -> tests that see a change there.
OTHERS = {
    "cfg/": ("config", "models", "lab/datasets"),
    "setup.py": ("test_constraints.py", "test_bounds_check.py"),
    "constraints": ("test_constraints.py",),
    "scripts/": (),
    "docs/": (),
}


@cache
def all_tests() -> tuple[Path, ...]:
    return tuple(sorted(TESTS.rglob("test_*.py")))


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def names_in(file: Path) -> frozenset[str]:
    """Return the modules and names that a file imports, and its strings. A string may be such a
    name, as in ``monkeypatch.setattr("detector.core.X.name", ...)``."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return frozenset(names)


def importing(file: Path) -> list[Path]:
    module = module_of(file)
    return [
        one
        for one in all_tests()
        if any(name == module or name.startswith(f"{module}.") for name in names_in(one))
    ]


def near_to(file: Path) -> list[Path]:
    direct = importing(file)
    parts = file.relative_to(ROOT / "detector").with_suffix("").parts
    where = parts[1:] if parts[0] == "core" else parts
    folder = TESTS / where[0] if where else TESTS
    if len(where) > 2 and (folder / where[1]).is_dir():
        folder = folder / where[1]
    near = [one for one in all_tests() if folder in one.parents and folder != TESTS]
    if where and where[0] in CONFORMANCE:
        near += [one for one in all_tests() if one.parent.name == "conformance"]
    return list(dict.fromkeys([*direct, *near]))


def of_wing(wing: str) -> list[Path]:
    if wing == "core":
        elsewhere = [TESTS / one for one in WINGS]
        return [one for one in all_tests() if not any(wing in one.parents for wing in elsewhere)]
    return [*HOUSE_TESTS, *(one for one in all_tests() if TESTS / wing in one.parents)]


def of_change(names: Iterable[str]) -> list[Path]:
    files: list[Path] = [*HOUSE_TESTS]
    for name in names:
        file = ROOT / name
        if name.startswith("detector/") and name.endswith(".py"):
            files += near_to(file) if file.exists() else []
        elif name.startswith("tests/") and name.endswith(".py") and file.exists():
            files += [file] if file.name.startswith("test_") else importing(file)
        elif name.endswith(".md"):
            files += PAGE_TESTS
        else:
            files += _other(name)
    return list(dict.fromkeys(one for one in files if one.exists()))


def _other(name: str) -> list[Path]:
    files = []
    for begin, places in OTHERS.items():
        if name.startswith(begin):
            for place in map(TESTS.joinpath, places):
                files += [one for one in all_tests() if one == place or place in one.parents]
    stem = Path(name).name
    return [*files, *(one for one in all_tests() if any(stem in text for text in names_in(one)))]


def changed_since(revision: str) -> list[str]:
    def git(*words: str) -> list[str]:
        return subprocess.check_output(["git", *words], cwd=ROOT, text=True).splitlines()

    since = git("merge-base", revision, "HEAD")[0]
    return [*git("diff", "--name-only", since), *git("ls-files", "-o", "--exclude-standard")]


def main(words: list[str]) -> None:
    match words:
        case ["--wing", wing] if wing in (*WINGS, "core"):
            files = of_wing(wing)
        case ["--changed", revision]:
            files = of_change(changed_since(revision))
        case _:
            sys.exit(f"tests.near: {' '.join(words)}: give --changed REVISION or --wing NAME")
    print(*(one.relative_to(ROOT) for one in files), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
