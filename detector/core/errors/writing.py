"""Write files so that no name ever refers to an incomplete file. Failures raise OutputError.

This holds even after a power loss. The content is on the disk before the file gets its name, and
the name is on the disk before we report the file (``put_in_place``).
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from detector.core.errors import OutputError
from detector.core.errors.guard import refuse_kept
from detector.core.errors.private import FILE_MODE, make_private_folder

HIDDEN = ".detect-video-"  # prefix of temporary names; hexadecimal digits and the suffix follow
PRIVATE = f"{HIDDEN}private-"
MARK = "user.detect-video"  # prefix of our extended attributes
# Errors of file systems without locks, and of file systems that cannot sync a folder.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def whole_file(
    target: Path, cure: str, *, ours: bool = False, private: bool = False
) -> Iterator[Path]:
    """Yield a temporary path next to ``target``. The file becomes ``target`` if the block succeeds,
    and is removed otherwise.

    A killed process leaves at most a hidden file. If ``target`` is a link, it remains one, and the
    file that it points to is replaced. Output to /dev/null is discarded. The umask decides who may
    read the file; with ``private``, only this account may. Raises OutputError for every OSError
    (``cure``: what the user can do), and UsageError if the command reads ``target``. Set ``ours``
    to skip this check if the user did not choose the name, or if the caller has checked the name.
    """
    if not ours:
        refuse_kept(target, cure)
    if is_null_device(target):
        with temporary_folder() as folder:
            yield folder / target.name
        return
    real = Path(os.path.realpath(target))
    # Choose the name before the file exists, so that ``finally`` can always remove the file.
    temporary = _hidden_name(real, PRIVATE if private else HIDDEN)
    try:
        _refuse_special(real)
        mode = FILE_MODE if private else 0o666
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        yield temporary
        put_in_place(temporary, real)
    except OSError as error:
        raise _output_error(target, error, cure) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(prefix: str = "detect-video-") -> Iterator[Path]:
    """Make a ``short_lived_folder`` in the system's temporary folder. Raises OutputError."""
    with ExitStack() as stack:
        try:
            name = f"{prefix}{secrets.token_hex(8)}"
            folder = stack.enter_context(short_lived_folder(Path(tempfile.gettempdir(), name)))
        except OSError as error:
            raise OutputError(
                f"no folder for temporary files can be made ({error}); set TMPDIR"
            ) from error
        yield folder


@contextmanager
def short_lived_folder(folder: Path) -> Iterator[Path]:
    """Make a folder for the block, and remove it with its content afterwards. Raises OSError.

    We do not use tempfile. It leaves the folder if a signal interrupts the removal. In Python 3.11,
    it recurses endlessly if the removal is not permitted; here, the folder then remains.
    """
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def write_whole(
    target: Path,
    content: bytes,
    cure: str = "choose another with -o",
    *,
    ours: bool = False,
    private: bool = False,
) -> None:
    """Write a file with ``whole_file``, and make its folder if it is missing. ``private``: only
    this account may read the file and the new folder."""
    try:
        if private:
            make_private_folder(target.parent)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _output_error(target, error, cure) from error
    with whole_file(target, cure, ours=ours, private=private) as temporary:
        temporary.write_bytes(content)


def put_in_place(temporary: Path, target: Path, file: int | None = None) -> None:
    """Give a finished file its final name. To survive a power loss, sync the content before the
    rename, and the folder after it. ``file``: an open descriptor of ``temporary``, if any."""
    if file is None:
        with temporary.open("rb+") as opened:
            os.fsync(opened.fileno())
    else:
        os.fsync(file)
    os.replace(temporary, target)
    sync_folder(target.parent)


def has_permission(path: str | Path, mode: int = os.W_OK | os.X_OK) -> bool:
    """Return whether this process has the permissions ``mode`` (``os.access``) for ``path``. The
    default is what creating files in a folder needs. We check the effective user: a check of the
    real user would ignore capabilities that a container or service granted."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def set_aside(path: Path) -> None:
    """Rename a file to ``NAME.replaced`` to free its name. We do not remove a user's file."""
    number = 1
    while os.path.lexists(path):
        aside = path.with_name(f"{path.name}.replaced{'' if number == 1 else f'-{number}'}")
        number += 1
        if not os.path.lexists(aside):
            os.rename(path, aside)


def sync_folder(folder: Path) -> None:
    """Sync ``folder``, so that a rename in it survives a crash."""
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # we may write to the folder but not open it, so we cannot sync it
        return
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(file)


def remove_hidden_files(folder: Path) -> None:
    """Remove files that killed processes left. Call it while nobody else writes to ``folder``."""
    for path in folder.glob(HIDDEN + "[0-9a-f]" * 8 + "*"):
        path.unlink(missing_ok=True)


def take_lock(file: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed or the process ends. Return False if another process
    holds the lock. Return True if the file system has no locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def is_null_device(path: str | Path) -> bool:
    """Return whether ``path`` is /dev/null under any name."""
    try:
        status, null = os.stat(path), os.stat(os.devnull)
    except (OSError, ValueError):
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == null.st_rdev


def _refuse_special(target: Path) -> None:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")


def _hidden_name(target: Path, prefix: str) -> Path:
    """Return a name with the suffix of ``target``, since numpy adds .npz to a name without it."""
    return target.with_name(f"{prefix}{secrets.token_hex(8)}{target.suffix}")


def is_output(path: str) -> bool:
    """Return whether extended attributes show that a run wrote, or is writing, this path."""
    try:
        return any(name.startswith(MARK) for name in os.listxattr(path))
    except OSError:
        return False


def utf8(text: str) -> bytes:
    r"""Encode text for a file. Lone surrogates stand for undecodable bytes in file names. UTF-8
    cannot encode them, so they become ``\udc80``, as in JSON."""
    return text.encode("utf-8", "backslashreplace")


def _output_error(target: Path, error: OSError, cure: str) -> OutputError:
    return OutputError(f"{target}: cannot be written: {error.strerror or error}; {cure}")
