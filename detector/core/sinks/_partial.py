"""The temporary file or folder that a sink writes, and one-line messages for its errors.

``x.partial.mp4`` is renamed to ``x.mp4`` on ``close``, so a file with the final name is complete.
The temporary file is locked, so that two runs cannot write the same target.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from detector.core.errors import OutputError
from detector.core.errors.guard import refuse_folder_of_kept, refuse_kept
from detector.core.errors.writing import MARK, put_in_place, take_lock

MOST_NAMES = 10_000  # temporary names tried for one target


class Partial:
    """The temporary file or folder of a target: created, locked, and renamed once it is complete.

    Links are followed, so that two names of one target share one lock. A killed run's temporary
    file is reused; if another program's file has that name, we use ``x.partial-2.mp4``. Raises
    OutputError if the target is ``source``, and UsageError if ``refuse_kept`` refuses it.
    """

    def __init__(self, target: Path, source: str = "", *, folder: bool = False) -> None:
        self.requested = target  # as the user typed it, for messages
        self.target = Path(os.path.realpath(target))
        self._parts = (self.target.name, "") if folder else (self.target.stem, self.target.suffix)
        self.path = self._make_path(1)
        _refuse_source(self.requested, (self.target, self.path), source)
        refuse_kept(self.requested)
        refuse_kept(self.path)
        if folder:
            refuse_folder_of_kept(self.target)
        with output_errors(self.requested):
            self.fd = self._open_folder() if folder else self._open_file()

    def _make_path(self, number: int) -> Path:
        stem, suffix = self._parts
        ending = "" if number == 1 else f"-{number}"
        return self.target.with_name(f"{stem}.partial{ending}{suffix}")

    def _open_file(self) -> int:
        if self.target.exists() and not self.target.is_file():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for number in range(1, MOST_NAMES):
            self.path = self._make_path(number)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                fd = os.open(self.path, flags, 0o666)
            except OSError:
                if os.path.lexists(self.path):
                    continue  # a link, a folder, or another program's file
                raise
            try:
                self._lock(fd)
                if _is_ours(fd):
                    _mark(fd)
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        raise OSError(errno.EEXIST, f"{MOST_NAMES} temporary names of this output are taken")

    def _open_folder(self) -> int:
        with suppress(FileExistsError):
            self.path.mkdir()
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._lock(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _lock(self, fd: int) -> None:
        """Lock the file, and check that its name still refers to it. Raises OutputError."""
        same = False
        if take_lock(fd):
            with suppress(FileNotFoundError):
                same = os.path.samestat(os.stat(self.path), os.fstat(fd))
        if not same:
            raise explain_being_written(self.requested)

    def commit(self) -> None:
        """Sync, then rename the file. So a crash leaves the old file or the complete new one."""
        with output_errors(self.requested):
            with suppress(OSError):
                os.removexattr(self.fd, MARK)
            put_in_place(self.path, self.target, self.fd)
        self.release()

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        """Remove the temporary file. Never raises."""
        with suppress(OSError):
            self.path.unlink()
        self.release()


def refuse_being_written(target: Path) -> None:
    """Raise OutputError if another run is writing ``target``. The check takes a lock for a moment.
    The lock is shared, so two callers do not block each other."""
    real = Path(os.path.realpath(target))
    for name in {f"{real.stem}.partial{real.suffix}", f"{real.name}.partial"}:  # file, or folder
        with suppress(OSError):
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(real.with_name(name), flags)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise explain_being_written(target) from None
            finally:
                os.close(fd)


def explain_being_written(target: Path) -> OutputError:
    return OutputError(
        f"cannot write {target}: another run is writing it; wait until it ends, or choose another "
        "-o"
    )


def _refuse_source(requested: Path, written: tuple[Path, ...], source: str) -> None:
    """Raise OutputError if one of the paths is the source, directly or through a link."""
    for path in written:
        with suppress(OSError):
            if source and path.samefile(source):
                raise OutputError(
                    f"cannot write {requested}: it would overwrite the source {source}; "
                    "choose another -o"
                )


def _is_ours(fd: int) -> bool:
    """Return whether a temporary file may be used: it is empty, or one of our runs created it."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        return False
    if not about.st_size:
        return True
    with suppress(OSError):  # without extended attributes, the file's origin is unknown
        return bool(os.getxattr(fd, MARK))
    return False


def _mark(fd: int) -> None:
    with suppress(OSError):
        os.setxattr(fd, MARK, b"1")


@contextmanager
def output_errors(target: Path, kinds: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Convert OSError (or ``kinds``) in the block to OutputError."""
    try:
        yield
    except kinds as error:
        raise OutputError(explain(error, target)) from error


def explain(error: Exception, target: Path) -> str:
    """Return a line for the user: what could not be written, why, and what to do."""
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full: {target} needs more space in {target.absolute().parent}; "
            "free some, or write elsewhere with -o"
        )
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    remedy = "write elsewhere with -o"
    if code == errno.ENOENT and not target.absolute().parent.is_dir():
        reason, remedy = (
            f"the folder {target.absolute().parent} does not exist",
            "create it, or write elsewhere with -o",
        )
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason = f"no permission to write in {target.absolute().parent}"
    elif code in (errno.EMFILE, errno.ENFILE):
        remedy = "raise the limit: ulimit -n 4096"
    elif code == errno.EISDIR:
        reason, remedy = "it exists and is not a regular file", "give a file's name with -o"
    elif code == errno.ENAMETOOLONG:
        reason, remedy = "the name is too long", "give a shorter one with -o"
    return f"cannot write {target}: {reason}; {remedy}"
