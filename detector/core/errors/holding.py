"""Keep reading the same file during a run, even if another file takes its name.

A run opens a video several times: for its pictures, its sound and its digest. If another file took
its name meanwhile, the run would mix the two files. So we open the file once (``hold``), and
libraries open it again through that descriptor (``name_to_open``).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

from detector.core.errors import DetectVideoError, OutputError
from detector.core.errors.writing import temporary_folder

READ_BYTES = 1 << 20
OBJECT_BYTES = 1 << 16  # PyAV's buffer for a stored object; OpenObject itself reads larger blocks
DESCRIPTORS = Path("/proc/self/fd")  # its entries link to open files; absent on some systems
LARGEST_HASHED = 2 << 30  # largest file to hash, in bytes; hashing it takes about two seconds


class HeldFile:
    """A regular file, open for reading. Opening ``name`` opens the same file again."""

    def __init__(self, path: str, link_folder: Path | None, suffix: str | None = None) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.before = os.fstat(self.descriptor)
        self.fingerprint, self.suffix = fingerprint(self.descriptor), suffix
        self.name = os.path.abspath(path)
        if link_folder is not None and DESCRIPTORS.is_dir() and not self._may_be_a_playlist():
            # Keep the suffix, from which FFmpeg guesses the format of raw streams.
            suffix = Path(path).suffix if suffix is None else suffix
            link = str(link_folder / f"in{suffix if suffix.isascii() else ''}")
            with suppress(OSError):
                os.symlink(f"/proc/{os.getpid()}/fd/{self.descriptor}", link)
                self.name = link

    def _may_be_a_playlist(self) -> bool:
        """Return whether the file may contain relative paths. If so, open it by its own path."""
        start = os.pread(self.descriptor, 64, 0)
        return not start or start.decode("ascii", "replace").replace("\n", "").isprintable()

    def sha256(self) -> str | None:
        """Return the hex digest of the current content, or None above 2 GiB."""
        if os.fstat(self.descriptor).st_size > LARGEST_HASHED:
            return None
        digest, at = hashlib.sha256(), 0
        try:
            while block := os.pread(self.descriptor, READ_BYTES, at):
                digest.update(block)
                at += len(block)
        except OSError:
            return None
        return digest.hexdigest()

    def changes(self) -> list[str]:
        """Describe what happened to the file since it was opened, in sentences for the user."""
        now, changes = os.fstat(self.descriptor), []
        if now.st_size != self.before.st_size:
            verb = "grew" if now.st_size > self.before.st_size else "shrank"
            changes.append(
                f"{self.path} {verb} from {self.before.st_size} to {now.st_size} bytes during the "
                "run; its sha256 is that of its content at the end"
            )
        elif now.st_mtime_ns != self.before.st_mtime_ns:
            changes.append(
                f"{self.path} was written to during the run; its sha256 is that of its content at "
                "the end"
            )
        with suppress(OSError):
            if not os.path.samestat(os.stat(self.path), now):
                changes.append(
                    f"{self.path} was replaced during the run; frames and sha256 are from the file "
                    "at the start"
                )
        return changes


class _Holders:
    """Files that the ``hold`` blocks of a path share. The last block to end closes them all."""

    def __init__(self) -> None:
        self.files: list[HeldFile] = []
        self.count, self.open = 0, ExitStack()

    def add(self, path: str, suffix: str | None) -> HeldFile | None:
        for held in self.files:
            if fingerprint(path) == held.fingerprint and held.suffix == suffix:
                return held
        folder = None
        with suppress(OutputError):  # without a link, libraries open the path itself
            folder = self.open.enter_context(temporary_folder())
        try:
            held = HeldFile(path, folder, suffix)
        except OSError:
            return None
        self.open.callback(os.close, held.descriptor)
        self.files.append(held)
        return held


_held: dict[str, _Holders] = {}
_entering = threading.Lock()


@contextmanager
def hold(path: str, suffix: str | None = None) -> Iterator[HeldFile | None]:
    """Keep ``path`` open during the block. Yield None if it cannot be opened; later reads
    report why. ``suffix``: the suffix that libraries see; None: that of ``path``."""
    if not os.path.isfile(path):
        yield None
        return
    with _entering:
        holders = _held.setdefault(path, _Holders())
        holders.count += 1
    try:
        with _entering:
            held = holders.add(path, suffix)
        yield held
    finally:
        with _entering:
            holders.count -= 1
            if not holders.count:
                del _held[path]
                holders.open.close()


def name_to_open(path: str) -> str:
    """Return the name by which libraries open ``path``: the held file's, or the absolute path. A
    relative path such as "clip:1.mp4" could be mistaken for a protocol."""
    if (holders := _held.get(path)) is None or not holders.files:
        return os.path.abspath(path)
    held = holders.files[-1]
    has_link = os.path.lexists(held.name)  # False if the user removed TMPDIR
    return held.name if has_link else f"{DESCRIPTORS}/{held.descriptor}"


class OpenObject(Protocol):
    """An object in an object store, open for reading. ``name``: its address."""

    name: str

    @property
    def size(self) -> int: ...

    def read(self, length: int = -1) -> bytes: ...

    def pread(self, length: int, start: int) -> bytes:
        """Read ``length`` bytes at offset ``start``."""


_openers: dict[str, Callable[[str], OpenObject] | dict[str, Any]] = {}


@contextmanager
def hold_as(address: str, opener: Callable[[str], OpenObject] | dict[str, Any]) -> Iterator[str]:
    """Yield a name to open during the block: the address, plus a number if the address is in use.
    ``opener``: a function from name to object, or the arguments with which PyAV opens it."""
    suffix = os.path.splitext(address)[1]  # FFmpeg guesses the format of raw streams from it
    names = chain([address], (f"{address}#{number}{suffix}" for number in count(2)))
    name = next(name for name in names if _openers.setdefault(name, opener) is opener)
    try:
        yield name
    finally:
        del _openers[name]


def open_object(name: str) -> OpenObject | None:
    """Open the object for which ``hold_as`` yielded this name. Return None for other names."""
    opener = _openers.get(name)
    return opener(name) if callable(opener) else None


def how_to_open(path: str) -> dict[str, Any]:
    """Return the arguments with which PyAV opens ``path``, a file or an object. The content of an
    object must not make FFmpeg open other addresses (HLS, concat)."""
    if isinstance(arguments := _openers.get(path), dict):
        return dict(arguments)
    file = open_object(path)
    if file is None:
        return {"file": name_to_open(path)}
    return {"file": file, "options": {"protocol_whitelist": "none"}, "buffer_size": OBJECT_BYTES}


def bad_tags() -> dict[str, str]:
    """Return the argument that makes PyAV replace invalid UTF-8 in tags. PyAV 19 needs no
    argument: it decodes such bytes to surrogates, which ``printable`` and ``utf8`` handle."""
    import av

    return {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}


_watched: ContextVar[dict[str, tuple[int, ...] | None] | None] = ContextVar("watched", default=None)


@contextmanager
def unchanged(paths: Iterable[str | Path | None], error: type[DetectVideoError]) -> Iterator[None]:
    """Raise ``error`` at the end of the block if a file was replaced or written to meanwhile: the
    block may have read old and new content. ``watch`` adds files during the block."""
    token = _watched.set({})
    try:
        watch(*paths)
        yield
        for path, before in (_watched.get() or {}).items():
            if fingerprint(path) != before:
                raise error(f"{path}: changed while it was read; run the command again")
    finally:
        _watched.reset(token)


def watch(*paths: str | Path | None) -> None:
    """Add files to the enclosing ``unchanged`` block, if any. Call this before reading them."""
    if (watched := _watched.get()) is not None:
        for path in paths:
            if path is not None:
                watched.setdefault(str(path), fingerprint(path))


def fingerprint(path: str | Path | int) -> tuple[int, ...] | None:
    """Return a value that changes if the file changes. Return None for a missing file."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
