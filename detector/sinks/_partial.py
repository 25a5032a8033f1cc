"""The temporary file or folder that a sink writes, and one line for everything that can go wrong
with it.

A sink writes to a temporary name beside its target (``x.partial.mp4`` for ``x.mp4``) and renames it
on ``close``. So the final name always means a whole file. A lock on the temporary file refuses a
second writer of the same target.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from detector.errors import OutputError


class Partial:
    """The temporary file or folder beside a target: created, locked, and renamed when it is whole.

    A link is followed, so that two names of one target share one lock, and the link outlives the
    run. What a killed run left under the temporary name is used again: the kernel dropped its lock.
    ``source`` is the file that the frames come from; it must survive.
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
        """Syncs the file to disk, then renames it.

        After a crash there is either the old file or the whole new one.
        """
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
    """Raises OutputError if the target or its temporary name is the source, by any link."""
    for path in written:
        with suppress(OSError):
            if source and path.samefile(source):
                raise OutputError(
                    f"cannot write {asked}: it would overwrite the source {source}; "
                    "choose another -o"
                )


def _open_file(target: Path, path: Path) -> int:
    if target.exists() and not target.is_file():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _open_folder(path: Path) -> int:
    with suppress(FileExistsError):
        path.mkdir()
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _lock(fd: int, path: Path, target: Path) -> None:
    """Takes the lock, then checks that the name still means this file.

    Its former owner may have renamed it in between. Raises OutputError when somebody else writes
    it.
    """
    busy = OutputError(
        f"cannot write {target}: another run is writing it; wait for it, or write elsewhere with -o"
    )
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    except OSError as error:  # some network file systems have no locks; we go on without one
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
    try:
        same = os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        same = False
    if not same:
        raise busy


def fsync_folder(folder: Path) -> None:
    """Syncs ``folder``, so that a rename in it outlives a crash."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the answer of a file system that cannot sync folders
            raise
    finally:
        os.close(fd)


@contextmanager
def output_errors(target: Path, kinds: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Turns errors of the operating system (or of ``kinds``) into OutputError. All sinks write
    under it.
    """
    try:
        yield
    except kinds as error:
        raise OutputError(explain(error, target)) from error


def explain(error: Exception, target: Path) -> str:
    """One line for the user: what could not be written, why, and what to do."""
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full: {target} needs more space in {target.absolute().parent}; "
            "free some, or write elsewhere with -o"
        )
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    cure = "write elsewhere with -o"
    if code == errno.ENOENT:
        reason, cure = (
            f"the folder {target.absolute().parent} does not exist",
            "create it, or write elsewhere with -o",
        )
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason = f"no permission to write in {target.absolute().parent}"
    elif code == errno.EISDIR:
        reason, cure = "it exists and is not a regular file", "give a file's name with -o"
    elif code == errno.ENAMETOOLONG:
        reason, cure = "the name is too long", "give a shorter one with -o"
    return f"cannot write {target}: {reason}; {cure}"
