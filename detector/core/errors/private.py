"""Create and read files that only this account can write. Find out who else can write to a file."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700
ACL = "system.posix_acl_access"  # extended attribute with the rights of individual accounts


def user_cache() -> Path:
    """Return our folder in $XDG_CACHE_HOME or ~/.cache. The ~ stays if the account has no home."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    with suppress(RuntimeError):  # no HOME, and no account has this user id
        home = home.expanduser()
    return home / "detect-video"


def has_no_home(folder: Path) -> bool:
    """Return whether ``user_cache`` found no home. We must not create a folder named ``~``."""
    return folder.parts[:1] == ("~",)


def make_private_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents with mode 0700. Raises OSError."""
    if has_no_home(folder):
        raise OSError("the home folder is unknown")
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_private_folder(folder.parent)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def read_own(path: Path, limit: int) -> bytes:
    """Read a regular file; never block. Raises OSError, also if it exceeds ``limit`` bytes."""
    with os.fdopen(open_own(path), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def open_own(path: Path) -> int:
    """Open a regular file that is not a link. Return its descriptor. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def who_else_may_write(path: Path) -> str | None:
    """Describe another account that could change a file or folder. Return None if none could, or
    if the path is missing. Follows links. Ignores root, which could change our program too."""
    try:
        status = path.stat()
    except OSError:
        return None
    mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to {_account_name(status.st_uid)}"
    if status.st_mode & stat.S_IWOTH:
        return f"everyone may write there ({mode})"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid, path):
        return f"its group may write there ({mode})"
    return None


def is_roots(path: Path) -> bool:
    """Return whether root owns ``path`` and no other account may change it."""
    try:
        return path.lstat().st_uid == 0 and who_else_may_write(path) is None
    except OSError:
        return False


def _is_private_group(gid: int, path: Path) -> bool:
    """Return whether a group contains only this account or root. On many systems an account has a
    group of the same name and the umask 002. This group may then write to the account's files."""
    with suppress(OSError):
        if ACL in os.listxattr(path):
            return False
    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name in (name, "root") and set(group.gr_mem) <= {name, "root"}


def _account_name(uid: int) -> str:
    try:
        return f"the account {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the account {uid}"
