"""The contract of a sink: rows or pictures in, one whole file out, or none.

A sink writes to a temporary name beside its target (``x.partial.mp4`` for ``x.mp4``), and renames on ``close``. A
lock on the temporary file refuses a second writer of the same target.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from detector.errors import OutputError
from detector.types import Detections, Frame, SourceInfo


class Sink:
    """``name`` is the key of the output ("video", "jsonl", ...); ``path`` the final path; ``notes`` what to tell."""

    name: str
    suffix: ClassVar[str] = ""  # of the files that it makes, with its dot; "" for a folder
    path: Path
    notes: list[str]

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.notes = []

    def open(self, info: SourceInfo) -> None:
        """Creates the temporary file. Raises OutputError where the target cannot be written."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        """Takes one frame, in order. May keep nothing of ``frame.image``: its buffer is used again."""
        raise NotImplementedError

    def close(self) -> Path:
        """Finishes, checks, fsyncs and renames the file; returns its final path. A second call only returns it."""
        raise NotImplementedError

    def abort(self) -> Path | None:
        """After a failure: keeps what is whole under the temporary name and returns that path, or removes it and
        returns None. The final name is not touched. May be called after a failed ``close``; never raises."""
        raise NotImplementedError


class Partial:
    """The temporary file or folder beside a target: created, locked, and renamed when it is whole.

    A link is followed, so that two names of one target share one lock and the link outlives the run. What a killed
    run left under the temporary name is used again: the kernel dropped its lock. ``source`` is what must survive.
    """

    def __init__(self, target: Path, source: str = "", *, folder: bool = False) -> None:
        self.asked = target  # as the user knows it, for messages
        self.target = Path(os.path.realpath(target))
        stem, suffix = (self.target.name, "") if folder else (self.target.stem, self.target.suffix)
        self.path = self.target.with_name(f"{stem}.partial{suffix}")
        _refuse_source(self.asked, (self.target, self.path), source)
        with output_errors(self.asked):
            self.fd = _open_folder(self.path) if folder else _open_file(self.target, self.path)
            try:
                _lock(self.fd, self.path, self.asked)
            except BaseException:
                os.close(self.fd)
                raise

    def commit(self) -> None:
        """Onto the disk, then under the final name: after a crash there is the old file or the whole new one."""
        with output_errors(self.asked):
            os.fsync(self.fd)
            os.replace(self.path, self.target)
            fsync_folder(self.target.parent)
        self.release()

    def release(self) -> None:
        """Gives up the lock; the file keeps its temporary name."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        """Removes the temporary file. Never raises."""
        with suppress(OSError):
            self.path.unlink()
        self.release()


def _refuse_source(asked: Path, written: tuple[Path, ...], source: str) -> None:
    """Neither the target nor its temporary name may be the source itself, under whatever name."""
    for path in written:
        with suppress(OSError):
            if source and path.samefile(source):
                raise OutputError(f"cannot write {asked}: it would overwrite the source {source}; choose another -o")


def _open_file(target: Path, path: Path) -> int:
    if target.exists() and not target.is_file():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _open_folder(path: Path) -> int:
    with suppress(FileExistsError):
        path.mkdir()
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _lock(fd: int, path: Path, target: Path) -> None:
    """Takes the lock, then looks whether the name still means this file: its former owner may have renamed it."""
    busy = OutputError(f"cannot write {target}: another run is writing it; wait for it, or write elsewhere with -o")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    except OSError as error:  # some network file systems have no locks: go on without
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
    try:
        same = os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        same = False
    if not same:
        raise busy


def fsync_folder(folder: Path) -> None:
    """Makes a rename in ``folder`` outlive a crash."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what a file system says that cannot sync folders
            raise
    finally:
        os.close(fd)


@contextmanager
def output_errors(target: Path, kinds: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Turns the system's refusals into one line for whoever must act. The one door for all sinks."""
    try:
        yield
    except kinds as error:
        raise OutputError(explain(error, target)) from error


def explain(error: Exception, target: Path) -> str:
    """One line: what could not be written, why, and what to do."""
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full: {target} needs more space in {target.absolute().parent}; free some, or write elsewhere with -o"
        )
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    cure = "write elsewhere with -o"
    if code == errno.ENOENT:
        reason, cure = f"the folder {target.absolute().parent} does not exist", "create it, or write elsewhere with -o"
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason = f"no permission to write in {target.absolute().parent}"
    elif code == errno.EISDIR:
        reason, cure = "it exists and is not a regular file", "give a file's name with -o"
    elif code == errno.ENAMETOOLONG:
        reason, cure = "the name is too long", "give a shorter one with -o"
    return f"cannot write {target}: {reason}; {cure}"
