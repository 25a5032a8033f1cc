"""The wings, and what each of them adds to the program.

A wing is a folder next to the core with a file ``WING/wing.py``, whose ``ADDS`` registers its
additions. The core names no wing and imports nothing from one until needed. Other parts are found
by place: files in ``WING/commands/``, ``stages/``, ``trackers/``, and ``site/`` (pages).
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

    ``sources``: name -> a class of ``sources.base.Source``. ``guest``: a ``cli.guest.Guest``, which
    takes over some runs of ``detect`` and observes the others. ``sections``: functions that take a
    session's document and return a ``tables.Section`` for the HTML report, or None. ``closing``:
    functions that take the summary of a finished run and whether -v is on, and return a line for
    the end of its output, or None.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    guest: str | None = None
    sections: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(file.parent.name for file in ROOT.glob("*/wing.py")))


@cache
def additions() -> tuple[Adds, ...]:
    return tuple(importlib.import_module(f"detector.{name}.wing").ADDS for name in names())


def load(place: str) -> Any:
    """Import and return what "MODULE:NAME" names."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


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
    """Return the one-line literal that a module, or a class in it, assigns to ``name``; None if it
    does not. Reads the source: only the parent packages are imported."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    line = re.search(rf"^ *{name}(?:: .+)? = (.+)$", source, re.MULTILINE)
    return None if line is None else ast.literal_eval(line[1])


@cache
def commands() -> Mapping[str, str]:
    """Map ``infer-raw`` -> "detector.core.commands.infer_raw" and so on. Imports none."""
    places = {**find_files("commands", "core"), **find_files("commands")}
    return {name.replace("_", "-"): place for name, place in places.items()}


# Contributions of wings to a run.


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
