"""The wings, and what each of them adds to the program.

A wing is a folder next to the core. ``ADDS`` in its file ``WING/wing.py`` lists most of the wing's
additions as literals. The core names no wing. It parses each ``WING/wing.py``, and imports a wing's
files only when they are needed. Other additions are options in ``WING/config.py``, and files in
folders such as ``commands/`` or ``sinks/``.
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
    """What a wing adds. Each value except ``tracker`` is "MODULE:NAME", imported at its first use.

    ``sources``: name -> a subclass of ``sources.base.Source``. ``guest``: a ``cli.guest.Guest``,
    which takes over some runs of ``detect`` and watches the others. ``sections``: functions that
    take a session's document and return a ``tables.Section`` of the HTML report, or None.
    ``closing``: functions that take a finished run's summary and whether -v was given, and return
    a last line of output, or None. ``tracker``: the default of --track.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    guest: str | None = None
    sections: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    tracker: str = ""


class MissingPartError(ImportError):
    """A file lacks the class or object that its recipe in CONTRIBUTING.md requires."""


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(file.parent.name for file in ROOT.glob("*/wing.py")))


@cache
def additions() -> tuple[Adds, ...]:
    """Parse the additions of each ``WING/wing.py`` without importing it."""
    return tuple(_read_adds(ROOT / name / "wing.py") for name in names())


def _read_adds(file: Path) -> Adds:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return Adds(**{str(word.arg): ast.literal_eval(word.value) for word in call.keywords})


@cache
def load(place: str) -> Any:
    """Import the module and return the object of "MODULE:NAME". Raises MissingPartError."""
    module, name = place.split(":")
    loaded = importlib.import_module(module)
    if not hasattr(loaded, name):
        raise MissingPartError(f"{loaded.__file__}: has no {name}; CONTRIBUTING.md has its recipe")
    return getattr(loaded, name)


@cache
def list_files(*folders: str) -> tuple[str, ...]:
    """Return the sorted names of the modules in a package's folders (``*__path__``), except
    ``base`` and names that start with "_". Cached, since a run calls it dozens of times."""
    names = sorted(info.name for info in pkgutil.iter_modules(folders))
    return tuple(name for name in names if name != "base" and not name.startswith("_"))


def import_files(package: str, *folders: str) -> list[ModuleType]:
    return [importlib.import_module(f"{package}.{name}") for name in list_files(*folders)]


@cache
def find_files(folder: str, *wings: str) -> Mapping[str, str]:
    """Map the names of the files in ``folder`` of ``wings`` (default: all) to names of modules."""
    return {
        name: f"detector.{wing}.{folder}.{name}"
        for wing in wings or names()
        for name in list_files(str(ROOT / wing / folder))
    }


@cache
def read_literal(module: str, name: str) -> Any:
    """Return the literal from a line ``name = ...`` in a module or one of its classes; None without
    such a line. Reads the source file without importing it."""
    path = ROOT.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file() and (spec := find_spec(module)) and spec.origin:
        file = Path(spec.origin)  # in a folder that was added to the package's __path__
    source = file.read_text(encoding="utf-8")
    line = re.search(rf"^ *{name}(?:: .+)? = (.+)$", source, re.MULTILINE)
    return None if line is None else ast.literal_eval(line[1])


@cache
def commands() -> Mapping[str, str]:
    """Map ``models`` -> "detector.core.commands.models" and so on. Imports none of them."""
    modules = {**find_files("commands", "core"), **find_files("commands")}
    return {name.replace("_", "-"): module for name, module in modules.items()}


def default_tracker() -> str:
    return "".join(adds.tracker for adds in additions())


@cache
def options(of_guests: bool = True) -> Mapping[str, Any]:
    """Map ``live`` to ``LiveConfig`` and so on: the options in ``WING/config.py``. ``of_guests``:
    include wings with a guest; only ``detect`` has their options."""
    return {
        name.removesuffix("Config").lower(): kind
        for wing, adds in zip(names(), additions(), strict=True)
        if (ROOT / wing / "config.py").is_file() and (of_guests or adds.guest is None)
        for name, kind in vars(importlib.import_module(f"detector.{wing}.config")).items()
        if name.endswith("Config")
    }


def guest_groups() -> tuple[str, ...]:
    return tuple(name for name in options() if name not in options(of_guests=False))


def guest() -> Any:
    """Return the ``cli.guest.Guest`` that may take over runs of ``detect``; None without one."""
    places = [adds.guest for adds in additions() if adds.guest is not None]
    return load(places[0])() if places else None


def closing_lines(summary: Any, verbose: bool) -> list[str]:
    return _call_each([place for adds in additions() for place in adds.closing], summary, verbose)


def sections(document: Any) -> list[Any]:
    return _call_each([place for adds in additions() for place in adds.sections], document)


def _call_each(places: Sequence[str], *arguments: Any) -> list[Any]:
    results = (load(place)(*arguments) for place in places)
    return [result for result in results if result is not None]
