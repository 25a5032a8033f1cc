"""The wings, and what each of them adds to the program.

A wing is a folder beside the core with a file ``wing.py``, whose ``ADDS`` names it. The core knows
no wing by name and imports nothing of one before it is asked for. Two more things are found by
their place: the commands in ``WING/commands/``, and the cfg files of the package.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from detector.core.config.schema import Config
    from detector.core.engines.base import BuildProgress
    from detector.core.run.detect import Live, Result, Watcher
    from detector.core.session.document import SessionDocument, Summary
    from detector.core.terminal.console import SafeConsole
    from detector.core.terminal.progress import LiveLine

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Adds:
    """What a wing adds. Each value is "MODULE:NAME" and is imported at its first use.

    ``sources``: name -> a class of ``sources.base.Source``. ``guest``: a ``Guest``, which takes
    some runs of ``detect`` over and watches the others. ``sections``: functions of a session's
    document, each of which gives a ``Section`` of the HTML report, or None. ``closing``: functions
    of a finished run's summary, each of which gives a line for the end of its output, or None; the
    second argument says whether -v asked for all.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    guest: str | None = None
    sections: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()


@cache
def names() -> tuple[str, ...]:
    """The wings there are, sorted."""
    return tuple(
        folder.name
        for _, folder in sorted((folder.name, folder) for folder in ROOT.iterdir())
        if (folder / "wing.py").is_file()
    )


@cache
def additions() -> tuple[Adds, ...]:
    return tuple(importlib.import_module(f"detector.{name}.wing").ADDS for name in names())


def load(place: str) -> Any:
    """What "MODULE:NAME" names."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


@cache
def list_files(*folders: str) -> tuple[str, ...]:
    """Names of the modules in the folders of a package, sorted: ``list_files(*__path__)``. A run
    asks tens of times for its engines and outputs, so each folder is read once."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(folders)))


# Commands.


@cache
def commands() -> Mapping[str, str]:
    """``infer-raw`` -> "detector.core.commands.infer_raw": a file each. Imports none of them."""
    places = [f"detector.{wing}.commands" for wing in ("core", *names())]
    return {
        name.replace("_", "-"): f"{place}.{name}"
        for place in places
        for name in list_files(str(ROOT.joinpath(*place.split(".")[1:])))
    }


# The command ``detect``.


class Around(Protocol):
    """What surrounds one run of ``detect`` while it lasts, such as a page."""

    def watch(self, line: LiveLine | None) -> tuple[Watcher | None, Live | None]:
        """Who sees the frames of a run over files, and who its progress."""


class Guest(Protocol):
    """What a wing does for ``detect``."""

    def takes(self, specs: Sequence[str], config: Config, given: Container[str]) -> bool:
        """Whether it runs these sources itself. ``given``: options on the command line. Raises
        UsageError for sources that do not go together, and for options that nothing would read."""

    def around(
        self, config: Config, say: Callable[[str], None]
    ) -> AbstractContextManager[Around]: ...

    def detect(
        self,
        specs: Sequence[str],
        config: Config,
        around: Around,
        *,
        command: Sequence[str],
        console: SafeConsole | None,
        say: Callable[[str], None],
        told: bool,
        building: BuildProgress | None,
    ) -> Result:
        """Runs them. ``console``: a terminal to draw on; None: there is none. ``told``: whether a
        line is said of each source that comes or goes."""


class _Nobody:
    """The guest where no wing has one."""

    def takes(self, specs: Sequence[str], config: Config, given: Container[str]) -> bool:
        return False

    @contextmanager
    def around(self, config: Config, say: Callable[[str], None]) -> Iterator[_Nobody]:
        yield self

    def watch(self, line: LiveLine | None) -> tuple[Watcher | None, Live | None]:
        return None, line

    def detect(self, *given: Any, **named: Any) -> Result:
        raise AssertionError("it takes nothing")


def guest() -> Guest:
    """The guest of the command ``detect``: there is one at most."""
    places = [adds.guest for adds in additions() if adds.guest is not None]
    found: Guest = load(places[0])() if places else _Nobody()
    return found


# The HTML report. A wing says what is shown; whoever renders the report draws it.


class Share(float):
    """A number that is shown as a percentage; None stays empty."""

    def __new__(cls, value: float | None) -> Share:
        return super().__new__(cls, float("nan") if value is None else value)


class Rounded(float):
    """A number with so many decimals, because more would be noise."""

    decimals: int

    def __new__(cls, value: float, decimals: int) -> Rounded:
        made = super().__new__(cls, value)
        made.decimals = decimals
        return made


@dataclass(frozen=True, slots=True)
class Rows:
    """A table. Of more than ``most`` rows the others are folded away; ``rest``: what they are."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    most: int | None = None
    rest: str = "rows"


@dataclass(frozen=True, slots=True)
class Curve:
    points: Sequence[tuple[float, float]]
    x_unit: str
    y_unit: str
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with paragraphs, tables and curves. ``how``: the entry on its numbers."""

    name: str
    title: str
    pieces: Sequence[str | Rows | Curve]
    how: str = ""


def closing_lines(summary: Summary, verbose: bool) -> list[str]:
    """What all wings say of a finished run."""
    made = (load(place)(summary, verbose) for adds in additions() for place in adds.closing)
    return [one for one in made if one is not None]


def sections(document: SessionDocument) -> list[Section]:
    """What all wings show of a session."""
    made = (load(place)(document) for adds in additions() for place in adds.sections)
    return [one for one in made if one is not None]
