"""Protect files from being overwritten: files that a command reads, and files of its session. A
guard belongs to one command (``guarded``). Code that reads user files calls ``keep``. Code that
writes files (``whole_file``, the sinks, the session) calls ``refuse_kept``. Files are compared by
device and inode, so a link, a hard link, ``./x`` and ``a/../x`` are one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from detector.core.errors import DetectVideoError, UsageError

Identity = tuple[int, int]  # device, inode
Paths = Callable[[], Iterable[str | Path]]


@dataclass(frozen=True, slots=True)
class _Guard:
    """Protected files and names. ``unlisted``: functions that list more files when needed."""

    unlisted: list[tuple[str, Paths]] = field(default_factory=list)
    files: dict[Identity, tuple[str, str]] = field(default_factory=dict)
    names: dict[tuple[Identity, str], str] = field(default_factory=dict)

    def list_files(self) -> dict[Identity, tuple[str, str]]:
        while self.unlisted:
            what, paths = self.unlisted.pop(0)
            try:
                listed = list(paths())
            except DetectVideoError:  # the reader of these files will report the error
                continue
            for path in listed:
                if (identity := _identify(path)) is not None and not os.path.isdir(path):
                    self.files.setdefault(identity, (what, str(path)))
        return self.files


_current: ContextVar[_Guard | None] = ContextVar("guard", default=None)


@contextmanager
def guarded() -> Iterator[None]:
    """Guard files during the block. Files that an outer block guards stay guarded."""
    outer = _current.get() or _Guard()
    token = _current.set(_Guard([*outer.unlisted], {**outer.files}, {**outer.names}))
    try:
        yield
    finally:
        _current.reset(token)


def keep(what: str, *paths: str | Path | None) -> None:
    """Protect these files, which the command reads, from being overwritten. ``what``: their name in
    messages ("the model"). Skips None and missing files. Does nothing outside ``guarded``."""
    keep_listed(what, lambda: [path for path in paths if path is not None])


def keep_listed(what: str, paths: Paths) -> None:
    """Protect files that take a while to list. ``paths`` is called only when it is needed."""
    if (guard := _current.get()) is not None:
        guard.unlisted.append((what, paths))


def reserve(what: str, folder: Path, names: Iterable[str]) -> None:
    """Reserve names in ``folder`` for ``what``, whether the files exist yet or not."""
    guard, place = _current.get(), _identify(folder)
    if guard is not None and place is not None:
        guard.names.update({(place, name): what for name in names})


def refuse_kept(target: str | Path, cure: str = "choose another with -o") -> None:
    """Raise UsageError if ``target`` is a protected file (by any path), or has a reserved name."""
    if (guard := _current.get()) is None:
        return
    real = Path(os.path.realpath(target))
    place = _identify(real.parent)
    if place is not None and (what := guard.names.get((place, real.name))) is not None:
        raise UsageError(f"{target}: belongs to {what} and would be overwritten; {cure}")
    identity = _identify(real)
    if identity is not None and (known := guard.list_files().get(identity)) is not None:
        what, path = known
        also = "" if path == str(target) else f" ({path})"
        raise UsageError(f"{target}: is {what} itself{also} and would be overwritten; {cure}")


def refuse_folder_of_kept(folder: Path) -> None:
    real, guard = os.path.realpath(folder), _current.get()
    if guard is None or not os.path.isdir(real):
        return
    for what, path in guard.list_files().values():
        if os.path.dirname(os.path.realpath(path)) == real:
            raise UsageError(f"{folder}: contains {path}, which is {what}; choose another with -o")


def _identify(path: str | Path) -> Identity | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
