"""A file stays the same file while it is read, whatever happens to its name meanwhile.

A video is opened several times during a run, by decoders, for its sound, for its digest. A run
would mix two files if another one moved to its name, so it is opened once (``hold``), and every
other opening goes through that descriptor (``name_to_open``).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from detector.core.errors import DetectVideoError

READ_BYTES = 1 << 20
OBJECT_BYTES = 1 << 16  # asked of an object at once; its blocks are larger
DESCRIPTORS = Path("/proc/self/fd")  # where the system has it: each is a link to its open file
LARGEST_HASHED = 2 << 30  # bytes; some two seconds of reading


class HeldFile:
    """A regular file, open for reading. ``name`` opens the same file again."""

    def __init__(self, path: str, link_folder: str, suffix: str | None = None) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.before = os.fstat(self.descriptor)
        self.name = os.path.abspath(path)
        if DESCRIPTORS.is_dir() and not self._may_be_a_playlist():
            # The suffix stays: FFmpeg guesses the format of raw streams by it.
            suffix = Path(path).suffix if suffix is None else suffix
            link = os.path.join(link_folder, f"in{suffix if suffix.isascii() else ''}")
            with suppress(OSError):
                os.symlink(f"/proc/{os.getpid()}/fd/{self.descriptor}", link)
                self.name = link

    def _may_be_a_playlist(self) -> bool:
        """Text may name other files, relative to its own folder: only its own name will do."""
        start = os.pread(self.descriptor, 64, 0)
        return not start or start.decode("ascii", "replace").replace("\n", "").isprintable()

    def sha256(self) -> str | None:
        """Hex digest of what the file holds now; None over 2 GiB."""
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
        """What happened to the file since it was opened, as sentences for the user."""
        now, said = os.fstat(self.descriptor), []
        if now.st_size != self.before.st_size:
            did = "grew" if now.st_size > self.before.st_size else "shrank"
            said.append(
                f"{self.path} {did} from {self.before.st_size} to {now.st_size} bytes during the "
                "run; its sha256 is that of its content at the end"
            )
        elif now.st_mtime_ns != self.before.st_mtime_ns:
            said.append(
                f"{self.path} was written to during the run; its sha256 is that of its content at "
                "the end"
            )
        with suppress(OSError):
            if not os.path.samestat(os.stat(self.path), now):
                said.append(
                    f"{self.path} was replaced during the run; frames and sha256 are from the file "
                    "at the start"
                )
        return said


_held: dict[str, list[HeldFile]] = {}


@contextmanager
def hold(path: str, suffix: str | None = None) -> Iterator[HeldFile | None]:
    """Keep ``path`` open during the block. None where it cannot be opened: its reader says
    why. ``suffix``: of the name by which libraries open it; None: its own."""
    if not os.path.isfile(path):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="detect-video-", ignore_cleanup_errors=True) as folder:
        try:
            held = HeldFile(path, folder, suffix)
        except OSError:
            yield None
            return
        _held.setdefault(path, []).append(held)
        try:
            yield held
        finally:
            _held[path].remove(held)
            os.close(held.descriptor)


def name_to_open(path: str) -> str:
    """The name by which a library opens ``path``: the held file, else the absolute path, which is
    never taken for a protocol ("clip:1.mp4" would be)."""
    held = _held.get(path)
    return held[-1].name if held else os.path.abspath(path)


class OpenObject(Protocol):
    """One opening of an object that lies in a store; ``name``: its address."""

    name: str

    @property
    def size(self) -> int: ...

    def read(self, length: int = -1) -> bytes: ...

    def pread(self, length: int, start: int) -> bytes:
        """As os.pread, but for the order of ``fd``."""


_objects: dict[str, list[Callable[[], OpenObject]]] = {}


@contextmanager
def hold_object(address: str, opening: Callable[[], OpenObject]) -> Iterator[None]:
    """Whatever opens ``address`` during the block gets what ``opening`` gives."""
    _objects.setdefault(address, []).append(opening)
    try:
        yield
    finally:
        _objects[address].remove(opening)


def open_object(address: str) -> OpenObject | None:
    """None where no object of this address is held: it is a file's name."""
    held = _objects.get(address)
    return held[-1]() if held else None


_arguments: dict[str, list[dict[str, Any]]] = {}


@contextmanager
def hold_arguments(address: str, arguments: dict[str, Any]) -> Iterator[None]:
    """PyAV opens ``address`` by these ``arguments`` during the block."""
    _arguments.setdefault(address, []).append(arguments)
    try:
        yield
    finally:
        _arguments[address].remove(arguments)


def how_to_open(path: str) -> dict[str, Any]:
    """The arguments by which PyAV opens ``path``: a file's name, or a held object, for which FFmpeg
    may open nothing that it names (HLS, concat)."""
    if held := _arguments.get(path):
        return dict(held[-1])
    found = open_object(path)
    if found is None:
        return {"file": name_to_open(path)}
    return {"file": found, "options": {"protocol_whitelist": "none"}, "buffer_size": OBJECT_BYTES}


def bad_tags() -> dict[str, str]:
    """The argument by which PyAV replaces what is no UTF-8 in tags. From 19 on it has none: such
    bytes are surrogates there, which ``printable`` and encoders of text take."""
    import av

    return {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}


_watched: ContextVar[dict[str, tuple[int, ...] | None] | None] = ContextVar("watched", default=None)


@contextmanager
def unchanged(paths: Iterable[str | Path | None], error: type[DetectVideoError]) -> Iterator[None]:
    """Raises ``error`` where one of the files is another one, or was written to, at the end of the
    block: what was read may be half of each. ``watch`` adds files during the block."""
    token = _watched.set({})
    try:
        watch(*paths)
        yield
        for path, was in (_watched.get() or {}).items():
            if _fingerprint(path) != was:
                raise error(f"{path}: changed while it was read; run the command again")
    finally:
        _watched.reset(token)


def watch(*paths: str | Path | None) -> None:
    """Files that are about to be read, inside a block of ``unchanged``; elsewhere does nothing."""
    if (watched := _watched.get()) is not None:
        for path in paths:
            if path is not None:
                watched.setdefault(str(path), _fingerprint(path))


def _fingerprint(path: str | Path) -> tuple[int, ...] | None:
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
