"""The folder of a run: session.json, summary.json, spans.npz, detections.jsonl.

A hidden file in the folder, ``.detect-video-session``, lists every file before it is written.
Reusing a folder removes only listed files. A run locks the list, so two runs never share a folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from detector.core.errors import OutputError, UsageError
from detector.core.errors.guard import keep, refuse_kept, reserve
from detector.core.errors.secrets import redact
from detector.core.errors.writing import (
    put_in_place,
    remove_hidden_files,
    take_lock,
    utf8,
    whole_file,
    write_whole,
)
from detector.core.session.codec import read_file, to_json
from detector.core.session.span_columns import span_columns
from detector.core.timeline.timeline import OffTimeline, Timeline

if TYPE_CHECKING:
    from detector.core.session.document import SpanCounts

# The list has a line "pid N TOKEN" for each process that wrote to it, and a line for each file.
LIST = ".detect-video-session"
PID = "pid "
TOKEN = secrets.token_hex(4)  # distinguishes processes that have the same pid in two containers
PASSES = "passes"  # folder in which each pass of `profile` writes a record NAME.json
ROWS = "detections.jsonl"
COPIED_BYTES = 1 << 20  # bytes per read when rows are copied
ROWS_SO_FAR = "detections.partial.jsonl"  # becomes ``ROWS`` at the end of the run
LOG = "error.log"
FILES = (
    "session.json",
    "summary.json",
    "spans.npz",
    ROWS,
    "evaluation.json",
    "coco-results.json",
    "precision-recall.svg",
    "confusion.svg",
)
# Files of `report`. They can be made again, so they are not protected from overwriting.
PRODUCTS = ("report.html", "profile.json", "trace.json.gz")
CURE = "choose another folder with --run-dir DIR"
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


class Session:
    """The folder of a run. We create it before the run, to report early if we cannot write to it.

    >>> session = Session.create("runs/in", "in")
    >>> session.begin()
    >>> print(session.write_json("summary.json", {"frames": 3}))
    runs/in/summary.json
    >>> session.release()
    """

    def __init__(self, folder: Path, made: bool = True, lock: int = -1) -> None:
        self.folder = folder
        self.notes: tuple[str, ...] = ()  # for the user, on a temporary folder or replaced session
        self._made = made  # whether this run made the folder
        self._made_parents: list[Path] = []  # parents that this run made, innermost first
        self._lock = lock  # descriptor of the open list; -1 without a lock
        self._begun = False

    @classmethod
    def create(cls, run_dir: str | None, name: str, *, or_temporary: bool = False) -> Session:
        """Use ``run_dir`` itself, or create runs/NAME (if it exists: NAME-2, NAME-3, ...).
        ``or_temporary``: use a temporary folder if ``runs`` cannot be written.

        Until ``begin``, only the list changes. Raises OutputError if the folder has files that are
        not ours, and UsageError if this command reads a file in it.
        """
        if run_dir:
            return cls._create(Path(run_dir), new=False)
        return cls.create_in(Path("runs"), name, or_temporary=or_temporary)

    @classmethod
    def create_in(cls, parent: Path, name: str, *, or_temporary: bool = False) -> Session:
        """Make a new folder PARENT/NAME (NAME-2, ... if it exists). Raises OutputError."""
        try:
            return cls._create(parent / name, new=True)
        except OutputError as error:
            reason = error.__cause__
            if not (or_temporary and isinstance(reason, OSError) and reason.errno in READ_ONLY):
                raise
            try:
                # Do not remove this folder at the end, because the user may want the session.
                place = Path(tempfile.mkdtemp(prefix="detect-video-runs-"))
            except OSError:  # report the first error, about the folder that the user knows
                raise error from reason
        session = cls._create(place / name, new=True)
        session._made_parents = [place]
        session.notes = (
            f"{parent} cannot be written ({reason.strerror}); this run's session is in "
            f"{session.folder}; {CURE}",
        )
        return session

    @classmethod
    def _create(cls, folder: Path, new: bool) -> Session:
        try:
            missing = [parent for parent in folder.parents if not parent.exists()]
            if not new:
                folder.parent.mkdir(parents=True, exist_ok=True)
                made = _make_folder(folder)
            else:
                folder, made = _make_new_folder(folder), True
            session = cls._open(folder, made)
            session._made_parents = missing
        except OSError as error:
            reason = (
                "a file has that name" if isinstance(error, FileExistsError) else error.strerror
            )
            raise OutputError(
                f"{folder}: cannot write to the session's folder: {reason}; {CURE}"
            ) from error
        try:
            session._refuse_foreign_files()
        except BaseException:
            session.discard()
            raise
        reserve("the run's session", folder, (LIST, LOG, ROWS_SO_FAR, *FILES))
        return session

    @classmethod
    def _open(cls, folder: Path, made: bool) -> Session:
        """Lock the folder. Raises OutputError if another process holds the lock."""
        while True:
            lock = _open_list(folder)
            if not take_lock(lock):
                for _ in range(20):  # the other process may not have written its pid yet
                    if writer := _last_writer(lock):
                        break
                    time.sleep(0.01)
                os.close(lock)
                who = f"process {writer.split()[0]}" if writer else "another process"
                raise OutputError(
                    f"{folder}: another run ({who}) is writing there; wait for it to end, or {CURE}"
                )
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(folder / LIST), os.fstat(lock)):
                    os.write(lock, f"{PID}{_process()}\n".encode())
                    return cls(folder, made, lock)
            os.close(lock)  # another run has removed the list since we opened it

    @classmethod
    @contextlib.contextmanager
    def reopened(cls, folder: Path) -> Iterator[Session]:
        """Lock the folder again after this process has finished its run. Raises OutputError."""
        try:
            lock = _open_list(folder)
        except OSError as error:
            raise OutputError(f"{folder}: cannot be written: {error.strerror}; {CURE}") from error
        session = cls(folder, False, lock)
        try:
            free, writer = take_lock(lock), _last_writer(lock)
            if not free or writer not in ("", _process()):
                raise OutputError(
                    f"{folder}: another run (process {writer.split()[0]}) has taken the folder; "
                    f"{CURE}"
                )
            yield session
        finally:
            session.release()

    def _refuse_foreign_files(self) -> None:
        ours = _listed_names(self.folder)
        for name in _list_session_names(self.folder):
            path = self.folder / name
            if name in ours:
                refuse_kept(path, CURE)
            elif os.path.lexists(path):
                raise OutputError(
                    f"{self.folder}: contains {name}, which detect-video did not write; move it, "
                    f"or {CURE}"
                )

    def begin(self) -> None:
        """Remove an earlier run's files. Call this as soon as there is something to write."""
        if self._begun or self._lock < 0:
            return
        self._begun = True
        if (self.folder / FILES[0]).exists():
            self.notes += (f"replaced the session of an earlier run in {self.folder}",)
        try:
            folders = set()
            for name in _listed_names(self.folder):
                path = self.folder / name
                parents = [parent for parent in path.parents if self.folder in parent.parents]
                if any(parent.is_symlink() for parent in parents):
                    continue  # the path leads out of the session
                if not path.is_dir() or path.is_symlink():
                    path.unlink(missing_ok=True)
                folders.update(parents)
            for emptied in sorted(folders, reverse=True):
                with contextlib.suppress(OSError):
                    emptied.rmdir()
            remove_hidden_files(self.folder)
            os.ftruncate(self._lock, 0)
            os.write(self._lock, f"{PID}{_process()}\n".encode())
        except OSError as error:
            raise OutputError(
                f"{self.folder}: cannot remove the earlier run's files: {error.strerror}; {CURE}"
            ) from error

    def claim(self, *names: str) -> Path:
        """List the ``names`` of files to be written. Return the first path. Raises OutputError."""
        try:
            known = _listed_names(self.folder)
            new = [name for name in names if name not in known]
            for name in new:
                path = self.folder / name
                if os.path.lexists(path):
                    raise OutputError(
                        f"{path}: already exists, and detect-video did not write it; move it, "
                        f"or {CURE}"
                    )
                path.parent.mkdir(exist_ok=True)
            if new:
                self._list(new)
        except OSError as error:
            raise OutputError(
                f"{self.folder / names[0]}: cannot be written: {error.strerror}; the run's outputs "
                "are kept"
            ) from error
        return self.folder / names[0]

    def _list(self, names: Iterable[str]) -> None:
        text = "".join(f"{name}\n" for name in names)
        lock = self._lock if self._lock >= 0 else _open_list(self.folder)
        try:
            os.write(lock, os.fsencode(text))
        finally:
            if lock != self._lock:
                os.close(lock)

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Remove the folder and its parents, if this run made them and they are empty."""
        with contextlib.suppress(OSError):
            if self._made or not _listed_names(self.folder):
                (self.folder / LIST).unlink(missing_ok=True)
            if self._made:
                self.folder.rmdir()
            for parent in self._made_parents:
                parent.rmdir()
        self.release()

    def path(self, name: str) -> Path:
        return self.folder / name

    def write_json(self, name: str, content: Any) -> Path:
        """Write ``content`` as JSON: a document, or plain dicts, lists, text and numbers."""
        return self.write_text(name, to_json(content))

    def write_pass(self, name: str, content: dict[str, Any]) -> Path:
        return self.write_json(f"{PASSES}/{name}.json", content)

    def write_text(self, name: str, content: str) -> Path:
        return self.write_bytes(name, utf8(content))

    def write_bytes(self, name: str, content: bytes) -> Path:
        with self.whole(name) as temporary:
            temporary.write_bytes(content)
        return self.path(name)

    def whole(self, name: str) -> AbstractContextManager[Path]:
        """Yield a path to write to. If the block succeeds, the file gets its final name."""
        return whole_file(self.claim(name), "the run's outputs are kept", ours=True)

    def log_error(self, text: str) -> Path | None:
        """Append ``text`` to error.log. Return its path, or None if it cannot be written."""
        try:
            with self.claim(LOG).open("a", encoding="utf-8", errors="backslashreplace") as log:
                log.write(redact(text))
        except (OutputError, OSError):  # the caller reports the error in ``text`` anyway
            return None
        return self.path(LOG)

    def adopt(self, path: Path) -> None:
        """Append the finished JSONL of a source to the session's rows, whole or not at all."""
        target = self.claim(ROWS_SO_FAR)
        try:
            # Write without a buffer. On a full disk, ``close`` would write what is still in the
            # buffer: the end of the rows without their beginning.
            with open(target, "ab", buffering=0) as into, open(path, "rb") as rows:
                size_before = os.fstat(into.fileno()).st_size
                try:
                    while block := rows.read(COPIED_BYTES):
                        while block:
                            block = block[into.write(block) :]
                except OSError:
                    os.ftruncate(into.fileno(), size_before)
                    raise
        except OSError as error:
            raise OutputError(
                f"{target}: cannot be written: {error.strerror}; {path} is complete"
            ) from error

    def finish_rows(self) -> None:
        """Give the file with all sources' rows its final name. If it has no rows, remove it."""
        rows = self.path(ROWS_SO_FAR)
        if not rows.exists():
            return
        if not rows.stat().st_size:
            rows.unlink()
            return
        target = self.claim(ROWS)
        try:
            put_in_place(rows, target)
        except OSError as error:
            raise OutputError(
                f"{target}: cannot be written: {error.strerror}; the run's outputs are kept"
            ) from error

    def write_spans(self, timelines: list[Timeline | OffTimeline]) -> SpanCounts:
        """Write the columns of every kept span as spans.npz."""
        columns, seen, kept = span_columns(timelines)
        with (
            self.whole("spans.npz") as temporary,
            # np.savez_compressed would write the same, but with all columns in memory.
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, column in columns:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, column, allow_pickle=False)
        from detector.core.session.document import SpanCounts

        return SpanCounts(seen=seen, kept=kept)


def keep_session(folder: Path) -> None:
    """Protect the files of a saved session from being overwritten, except those of reports."""
    names = {*_listed_names(folder), *_list_session_names(folder)}.difference(PRODUCTS)
    keep("the session", *(folder / name for name in names if not name.endswith(".csv")))


def add_to_session(folder: Path, name: str, content: bytes) -> Path:
    """Write a file, made from a saved session, into the session's folder. Raises OutputError."""
    if _listed_names(folder):
        Session(folder).claim(name)
    write_whole(folder / name, content, ours=True)
    return folder / name


def _list_session_names(folder: Path) -> list[str]:
    """Return the names that any session may use, and this session's files of passes and sources."""
    more = [
        str(path.relative_to(folder))
        for pattern in (f"{PASSES}/*", "source-*.jsonl")
        for path in sorted(folder.glob(pattern))
    ]
    return [*FILES, ROWS_SO_FAR, LOG, *more]


def _open_list(folder: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(folder / LIST, flags, 0o666)


def _listed_names(folder: Path) -> set[str]:
    """Return the names in the list, except any that lead out of the folder."""
    try:
        lines = os.fsdecode(read_file(folder / LIST)).split("\n")
    except UsageError:
        return set()
    return {
        line
        for line in lines
        if line
        and not line.startswith(PID)
        and not PurePath(line).is_absolute()
        and ".." not in PurePath(line).parts
    }


def _process() -> str:
    return f"{os.getpid()} {TOKEN}"


def _last_writer(lock: int) -> str:
    """Return the pid and token of the last process in the list; "" if the list has none."""
    lines = os.fsdecode(os.pread(lock, os.fstat(lock).st_size, 0)).split("\n")
    writers = [line.removeprefix(PID) for line in lines if line.startswith(PID)]
    return writers[-1] if writers and writers[-1].strip() else ""


def _make_folder(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True


def _make_new_folder(folder: Path) -> Path:
    """Make ``folder``, or NAME-2, NAME-3, ... Two runs never share it: mkdir is atomic."""
    for number in range(1, 10_000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        while True:
            try:
                candidate.parent.mkdir(parents=True, exist_ok=True)
                candidate.mkdir()
            except FileNotFoundError:  # another run failed to start and has removed ``runs``
                continue
            except FileExistsError:
                if not candidate.parent.is_dir():
                    raise
                break
            return candidate
    raise OutputError(f"{folder}: 9999 sessions have that name; delete some, or {CURE}")
