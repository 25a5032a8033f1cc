"""Protect files from being overwritten: those that a command reads, and those that a run keeps. A
guard belongs to one command (``guarded``). Readers of user files ``keep`` them; writers (of whole
files, the sinks, the session) call ``refuse_kept``. Files are compared by device and inode, so a
link, a hard link, ``./x`` and ``a/../x`` are one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from detector.core.errors import DetectVideoError, UsageError

Identity = tuple[int, int]  # device, inode
Paths = Callable[[], Iterable[str | Path]]


class Guard:
    """Protected files by identity, and names in folders that a run is going to write."""

    def __init__(self, outer: Guard | None = None) -> None:
        """Inherit from ``outer``: a run inside a command guards the command's files too."""
        # Resolved when a writer first meets an existing file, which is rare.
        self._waiting: list[tuple[str, Paths]] = [] if outer is None else list(outer._waiting)
        self._files: dict[Identity, tuple[str, str]] = {} if outer is None else dict(outer._files)
        self._names: dict[tuple[Identity, str], str] = {} if outer is None else dict(outer._names)

    def keep(self, what: str, paths: Paths) -> None:
        self._waiting.append((what, paths))

    def reserve(self, what: str, folder: Path, names: Iterable[str]) -> None:
        if (place := _identity(folder)) is not None:
            self._names.update({(place, name): what for name in names})

    def refuse(self, target: str | Path, cure: str) -> None:
        real = Path(os.path.realpath(target))
        place = _identity(real.parent)
        if place is not None and (what := self._names.get((place, real.name))) is not None:
            raise UsageError(f"{target}: belongs to {what} and would be overwritten; {cure}")
        if (identity := _identity(real)) is None:
            return
        self._look()
        if (known := self._files.get(identity)) is not None:
            what, path = known
            also = "" if path == str(target) else f" ({path})"
            raise UsageError(f"{target}: is {what} itself{also} and would be overwritten; {cure}")

    def refuse_folder(self, folder: Path) -> None:
        real = os.path.realpath(folder)
        if not os.path.isdir(real):
            return
        self._look()
        for what, path in self._files.values():
            if os.path.dirname(os.path.realpath(path)) == real:
                raise UsageError(
                    f"{folder}: contains {path}, which is {what}; choose another with -o"
                )

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for what, paths in waiting:
            try:
                listed = list(paths())
            except DetectVideoError:  # its reader reports what is wrong
                continue
            for path in listed:
                if (identity := _identity(path)) is not None and not os.path.isdir(path):
                    self._files.setdefault(identity, (what, str(path)))


_current: ContextVar[Guard | None] = ContextVar("guard", default=None)


@contextmanager
def guarded() -> Iterator[None]:
    """Guard files during the block: its kept files, and those of an outer block."""
    token = _current.set(Guard(_current.get()))
    try:
        yield
    finally:
        _current.reset(token)


def keep(what: str, *paths: str | Path | None) -> None:
    """Let nothing overwrite these files, which the command reads. ``what``: "the model". None and
    missing files are skipped. Outside ``guarded`` it does nothing."""
    if (guard := _current.get()) is not None:
        guard.keep(what, lambda: [path for path in paths if path is not None])


def keep_listed(what: str, paths: Paths) -> None:
    """Keep files that take a while to list: ``paths`` is called when a writer asks."""
    if (guard := _current.get()) is not None:
        guard.keep(what, paths)


def reserve(what: str, folder: Path, names: Iterable[str]) -> None:
    """Reserve names in ``folder`` for ``what``, whether the files exist yet or not."""
    if (guard := _current.get()) is not None:
        guard.reserve(what, folder, names)


def refuse_kept(target: str | Path, cure: str = "choose another with -o") -> None:
    """Raise UsageError if writing ``target`` would overwrite a kept file, by any link or name."""
    if (guard := _current.get()) is not None:
        guard.refuse(target, cure)


def refuse_folder_of_kept(folder: Path) -> None:
    if (guard := _current.get()) is not None:
        guard.refuse_folder(folder)


def _identity(path: str | Path) -> Identity | None:
    """Identify a file or folder, following links; None for anything else, or if absent."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino
