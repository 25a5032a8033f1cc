"""The wings, and what each of them adds to the program.

A wing is a folder beside the core with a file ``WING/wing.py``, whose ``ADDS`` names it, in
literals. The core knows no wing by name and imports nothing of one, not even that file, before it
is asked for. Other things are found by their place: files in ``WING/commands/``, ``stages/``,
``trackers/``, and ``site/`` (of pages).
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Adds:
    """What a wing adds. Each value is "MODULE:NAME", imported at its first use.

    ``sources``: name -> a class of ``sources.base.Source``. ``guest``: a
    ``cli.guest.Guest``, which takes some runs of ``detect`` over and watches the others.
    ``sections``: functions of a session's document, each of which gives a ``tables.Section`` of the
    HTML report, or None. ``closing``: functions of a finished run's summary, each of which gives a
    line for the end of its output, or None; the second argument says whether -v asked for all.
    ``tracker``: the name that --track has by default.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    guest: str | None = None
    sections: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    tracker: str = ""


class MissingPartError(ImportError):
    """A file in the right folder, without the class or object of its recipe in CONTRIBUTING.md."""


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(file.parent.name for file in ROOT.glob("*/wing.py")))


@cache
def additions() -> tuple[Adds, ...]:
    """Read from the source of each ``WING/wing.py``: a run imports no wing that it does not use."""
    return tuple(_read_adds(ROOT / name / "wing.py") for name in names())


def _read_adds(file: Path) -> Adds:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    made = next(node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return Adds(**{str(one.arg): ast.literal_eval(one.value) for one in made.keywords})


@cache
def load(place: str) -> Any:
    """Import and return what "MODULE:NAME" names. Raises MissingPartError."""
    module, name = place.split(":")
    loaded = importlib.import_module(module)
    if not hasattr(loaded, name):
        raise MissingPartError(f"{loaded.__file__}: has no {name}; CONTRIBUTING.md has its recipe")
    return getattr(loaded, name)


@cache
def list_files(*folders: str) -> tuple[str, ...]:
    """Return the sorted names of the modules in a package's folders: ``list_files(*__path__)``;
    without ``base`` and names that start with "_". Each folder is read once, since a run asks
    dozens of times."""
    found = sorted(info.name for info in pkgutil.iter_modules(folders))
    return tuple(name for name in found if name != "base" and not name.startswith("_"))


def import_files(package: str, *folders: str) -> list[ModuleType]:
    return [importlib.import_module(f"{package}.{name}") for name in list_files(*folders)]


def find_files(folder: str, *of: str) -> Mapping[str, str]:
    """Map name -> module for ``WING/folder``, of these wings or of all. Imports none."""
    return {
        name: f"detector.{wing}.{folder}.{name}"
        for wing in of or names()
        for name in list_files(str(ROOT / wing / folder))
    }


@cache
def read_literal(module: str, name: str) -> Any:
    """Return the literal that a module, or a class in it, assigns to ``name`` on one line, or None.
    Read from its source; nothing is imported."""
    place = ROOT.parent.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.is_file() and (spec := find_spec(module)) and spec.origin:
        file = Path(spec.origin)  # of a folder that was added to the package's path
    source = file.read_text(encoding="utf-8")
    line = re.search(rf"^ *{name}(?:: .+)? = (.+)$", source, re.MULTILINE)
    return None if line is None else ast.literal_eval(line[1])


@cache
def commands() -> Mapping[str, str]:
    """Map ``infer-raw`` -> "detector.core.commands.infer_raw" and so on. Imports none."""
    places = {**find_files("commands", "core"), **find_files("commands")}
    return {name.replace("_", "-"): place for name, place in places.items()}


def default_tracker() -> str:
    return "".join(adds.tracker for adds in additions())


# What wings say of a run.


def guest() -> Any:
    """Return what may take over runs of ``detect`` (``cli/guest.py``); None if no wing has it."""
    places = [adds.guest for adds in additions() if adds.guest is not None]
    return load(places[0])() if places else None


def closing_lines(summary: Any, verbose: bool) -> list[str]:
    """Return the lines that wings add at the end of a run's output."""
    return _ask([place for adds in additions() for place in adds.closing], summary, verbose)


def sections(document: Any) -> list[Any]:
    """Return the report sections that wings make of a session."""
    return _ask([place for adds in additions() for place in adds.sections], document)


def _ask(places: Sequence[str], *facts: Any) -> list[Any]:
    return [one for place in places if (one := load(place)(*facts)) is not None]
