"""One attack as data, and a kind of attacks. A case can be saved to a folder and run again."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, unquote

# All documented exit codes except 1, which means a bug.
HANDLED = frozenset({0, 2, 3, 4, 5, 6, 7, 8})
MB = 1 << 20
ENGINE_MB = 1500  # additional memory of a real engine's library


@dataclass(frozen=True)
class Limits:
    """The limits of a case and of its environment. None means unlimited.

    A case that exceeds ``wall_s``, ``cpu_s`` or ``memory_mb`` fails. The other fields restrict the
    environment. ``address_space_mb``, ``file_bytes`` (RLIMIT_FSIZE), ``open_files`` and
    ``stack_kb`` are set by setrlimit. For ``disk_bytes``, root mounts a file system of this size at
    the current folder. If it cannot be mounted, ``disk_bytes`` replaces ``file_bytes``.
    """

    wall_s: float = 60.0
    cpu_s: float = 20.0
    memory_mb: int = 1500
    address_space_mb: int | None = 8192
    file_bytes: int | None = None
    disk_bytes: int | None = None
    open_files: int | None = None
    stack_kb: int | None = None


@dataclass(frozen=True)
class Case:
    """Files to create in an empty current folder, and a command line to run there.

    ``files``: path -> content. A path that ends in "/" is an empty folder; ``Link`` is a link,
    ``Pipe`` a named pipe.
    ``argv``: the arguments of detect-video, with relative paths. ``codes``: the accepted exit
    codes; a negative one is a signal. ``env``: variables to set; None unsets one.
    ``fresh``: run in a new process, not in a fork of server.py. ``signals``: (seconds after the
    command begins, number). ``stdout``: "file", "full" (/dev/full) or "broken" (a pipe without a
    reader).
    ``closed``: descriptors to close before the command. ``copies``: how many processes run the
    command at once in one folder. ``one_of``: at least one process must end with this code.
    ``again``: afterwards the same command line runs once more, undisturbed, and must end with one
    of these codes. ``may_change``: files that the command may change, as its outputs.
    ``modes``: path -> mode. ``owners``: path -> user id, if root runs the attacks.
    ``plain_user``: take away root's right to ignore modes (fresh processes only).
    ``pages``: path -> what two web servers send (see ``two_servers``). Their addresses replace
    ``{own}`` and ``{other}`` in .yaml files. ``wants_login``: the first server requires a login.
    ``visits``: what visitors of the case's page send (see ``visitors``); ``{port}`` in ``argv`` is
    the page's port.
    ``digests``: path -> sha256 that the file must have afterwards. ``says``: words that must be
    printed.
    """

    files: Mapping[str, bytes | Link | Pipe]
    argv: tuple[str, ...]
    codes: frozenset[int] = HANDLED
    note: str = ""
    env: Mapping[str, str | None] = field(default_factory=dict)
    limits: Limits = Limits()
    fresh: bool = False
    signals: tuple[tuple[float, int], ...] = ()
    stdout: str = "file"
    closed: tuple[int, ...] = ()
    copies: int = 1
    one_of: int | None = None
    again: frozenset[int] | None = None
    may_change: frozenset[str] = frozenset()
    modes: Mapping[str, int] = field(default_factory=dict)
    owners: Mapping[str, int] = field(default_factory=dict)
    plain_user: bool = False
    pages: Mapping[str, bytes] = field(default_factory=dict)
    wants_login: bool = False
    visits: tuple[tuple[bytes, ...], ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    says: str = ""

    def save(self, folder: Path) -> None:
        """Write case.json, command.txt (for people), files/ and pages/."""
        lay_out(self, folder / "files")
        for path, page in self.pages.items():
            (folder / "pages").mkdir(exist_ok=True)
            (folder / "pages" / quote(path, safe="")).write_bytes(page)
        document = {one.name: getattr(self, one.name) for one in fields(self)}
        del document["files"], document["pages"]
        sets = [name for name, value in document.items() if isinstance(value, frozenset)]
        document |= {name: sorted(document[name]) for name in sets}
        document["limits"] = asdict(self.limits)
        document["visits"] = [[piece.decode("latin-1") for piece in one] for one in self.visits]
        (folder / "case.json").write_text(json.dumps(document, indent=1) + "\n")
        words = " ".join(shlex.quote(word) for word in self.argv)
        (folder / "command.txt").write_text(f"detect-video {words}\n", errors="surrogateescape")


@dataclass(frozen=True)
class Link:
    to: str


@dataclass(frozen=True)
class Pipe:
    """A named pipe without a writer, as content of a path."""


@dataclass(frozen=True)
class Kind:
    """A kind of attack. ``make(random)`` returns a case; equal random numbers give equal cases.
    ``share``: relative number of its cases in a long run. ``first``: this many cases run early, so
    that a short run includes them."""

    name: str
    make: Callable[[Random], Case]
    share: float
    first: int = 0

    def case(self, seed: int, number: int) -> Case:
        return self.make(Random(f"{seed}/{self.name}/{number}"))

    def cases(self, seed: int) -> Iterator[Case]:
        number = 0
        while True:
            yield self.case(seed, number)
            number += 1


def read_case(folder: Path) -> Case:
    document: dict[str, Any] = json.loads((folder / "case.json").read_text())
    files: dict[str, bytes | Link | Pipe] = {}
    root = folder / "files"
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            files[name] = Link(str(path.readlink()))
        elif path.is_dir():
            files[f"{name}/"] = b""
        elif path.is_fifo():
            files[name] = Pipe()
        else:
            files[name] = path.read_bytes()
    pages = {unquote(path.name): path.read_bytes() for path in (folder / "pages").glob("*")}
    again = document.pop("again")
    visits = [tuple(piece.encode("latin-1") for piece in one) for one in document.pop("visits", ())]
    return Case(
        files,
        tuple(document.pop("argv")),
        codes=frozenset(document.pop("codes")),
        limits=Limits(**document.pop("limits")),
        signals=tuple((after, number) for after, number in document.pop("signals")),
        closed=tuple(document.pop("closed")),
        may_change=frozenset(document.pop("may_change")),
        again=None if again is None else frozenset(again),
        pages=pages,
        visits=tuple(visits),
        **document,
    )


def on_engine(case: Case, engine: str, clip: bytes) -> Case | None:
    """Change the case to use a real engine. If the case only shows a model, it becomes a run of
    that model on ``clip``. Return None if the case involves no engine."""
    argv, files = list(case.argv), dict(case.files)
    if "--engine" in argv:
        argv[argv.index("--engine") + 1] = engine
    elif argv[:2] == ["models", "show"]:
        more = [word for word in argv[3:] if word != "--json"]
        run = ["--engine", engine, "--engines-dir", "../engines", "--no-video", "--frames", "2"]
        argv = ["in.mp4", "--model", argv[2], *run, *more]
        files["in.mp4"] = clip
    else:
        return None
    limits = replace(
        case.limits,
        wall_s=max(case.limits.wall_s, 120),
        cpu_s=max(case.limits.cpu_s, 60),
        memory_mb=case.limits.memory_mb + ENGINE_MB,
        address_space_mb=None,
    )
    # Exit code 5: the engine cannot run the model. 4: no head can read the model's outputs.
    codes = case.codes | {4, 5, 7}
    return replace(case, files=files, argv=tuple(argv), codes=codes, limits=limits, fresh=True)


def lay_out(case: Case, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in case.files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.to)
        elif isinstance(content, Pipe):
            os.mkfifo(path)
        else:
            path.write_bytes(content)
