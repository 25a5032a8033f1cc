"""The wings, and what each of them adds to the program.

A wing is a folder beside the core with a file ``WING/wing.py``, whose ``ADDS`` names it. The core
knows no wing by name and imports nothing of one before it is asked for. Other things are found by
their place: files in ``WING/commands/``, ``stages/``, ``trackers/``, and ``site/`` (of pages).
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
    """What a wing adds. Each value is "MODULE:NAME" and is imported at its first use.

    ``sources``: name -> a class of ``sources.base.Source``. ``guest``: a
    ``cli.guest.Guest``, which takes some runs of ``detect`` over and watches the others.
    ``sections``: functions of a session's document, each of which gives a ``tables.Section`` of the
    HTML report, or None. ``closing``: functions of a finished run's summary, each of which gives a
    line for the end of its output, or None; the second argument says whether -v asked for all.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    guest: str | None = None
    sections: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()


@cache
def names() -> tuple[str, ...]:
    """The wings there are, sorted."""
    return tuple(sorted(file.parent.name for file in ROOT.glob("*/wing.py")))


@cache
def additions() -> tuple[Adds, ...]:
    return tuple(importlib.import_module(f"detector.{name}.wing").ADDS for name in names())


class MissingPartError(ImportError):
    """A file in the right folder, without the class or object of its recipe in CONTRIBUTING.md."""


def load(place: str) -> Any:
    """What "MODULE:NAME" names. Raises MissingPartError."""
    module, name = place.split(":")
    loaded = importlib.import_module(module)
    if not hasattr(loaded, name):
        raise MissingPartError(f"{loaded.__file__}: has no {name}; CONTRIBUTING.md has its recipe")
    return getattr(loaded, name)


@cache
def list_files(*folders: str) -> tuple[str, ...]:
    """Names of the modules in the folders of a package, sorted: ``list_files(*__path__)``; without
    ``base`` and those that begin with "_". A run asks tens of times for its engines and outputs, so
    each folder is read once."""
    found = sorted(info.name for info in pkgutil.iter_modules(folders))
    return tuple(name for name in found if name != "base" and not name.startswith("_"))


def import_files(package: str, *folders: str) -> list[ModuleType]:
    return [importlib.import_module(f"{package}.{name}") for name in list_files(*folders)]


def find_files(folder: str, *of: str) -> Mapping[str, str]:
    """Name -> module of the files in ``WING/folder``, of these wings or of all; imports none."""
    return {
        name: f"detector.{wing}.{folder}.{name}"
        for wing in of or names()
        for name in list_files(str(ROOT / wing / folder))
    }


@cache
def read_literal(module: str, name: str) -> Any:
    """What a module or a class in it gives ``name``, as a literal on one line; None if it does not.
    Read from its source: only the packages above it are imported."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    line = re.search(rf"^ *{name}(?:: .+)? = (.+)$", source, re.MULTILINE)
    return None if line is None else ast.literal_eval(line[1])


@cache
def commands() -> Mapping[str, str]:
    """``infer-raw`` -> "detector.core.commands.infer_raw": a file each. Imports none of them."""
    places = {**find_files("commands", "core"), **find_files("commands")}
    return {name.replace("_", "-"): place for name, place in places.items()}


# What wings say of a run.


def guest() -> Any:
    """What takes over some runs of ``detect`` (``cli/guest.py``); None if no wing has one."""
    places = [adds.guest for adds in additions() if adds.guest is not None]
    return load(places[0])() if places else None


def closing_lines(summary: Any, verbose: bool) -> list[str]:
    """What all wings say of a finished run."""
    return _ask([place for adds in additions() for place in adds.closing], summary, verbose)


def sections(document: Any) -> list[Any]:
    """What all wings show of a session."""
    return _ask([place for adds in additions() for place in adds.sections], document)


def _ask(places: Sequence[str], *facts: Any) -> list[Any]:
    return [one for place in places if (one := load(place)(*facts)) is not None]
