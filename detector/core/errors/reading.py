"""Read a text file that the user names, with limits on its size and on the time it takes.

The name can refer to anything: a file of 40 GB, ``/dev/zero``, a pipe without a writer. A pipe that
ends works like a file (``--names <(sort a.txt)``). A signal interrupts reading.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

from detector.core.errors import DetectVideoError, UsageError

SILENCE_S = 30.0  # how long a pipe may stay silent: the command in `<(...)` may start slowly
BLOCK_BYTES = 1 << 20
TEXT_BYTES = 1 << 20  # enough for hand-written files: a configuration, a list of names

# Contents of pipes, by device and inode. We keep them, because a pipe can be read only once.
_pipes: dict[tuple[int, int], bytes] = {}


def read_text(
    path: str | Path,
    what: str,
    *,
    limit: int = TEXT_BYTES,
    error: type[DetectVideoError] = UsageError,
    cure: str = "check the path",
) -> str:
    """Read a file as ``read_bytes`` does, and decode it. Raises ``error`` if it is not UTF-8."""
    data = read_bytes(path, what, limit=limit, error=error, cure=cure)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise error(
            f"{path}:{line}: not text in UTF-8, so it is not {what}; check the path, or save it "
            "as UTF-8"
        ) from exc


def read_bytes(
    path: str | Path,
    what: str,
    *,
    limit: int = TEXT_BYTES,
    error: type[DetectVideoError] = UsageError,
    cure: str = "check the path",
) -> bytes:
    """Return the content of a file, or of a pipe or device that ends.

    Raises ``error`` if the file cannot be read, exceeds ``limit`` bytes, or is a silent pipe. The
    message contains ``what`` (the content: "a list of names") or ``cure`` (what to do).
    """
    try:
        # Without O_NONBLOCK, even opening a pipe would block until it has a writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = _read(file, limit)
        finally:
            os.close(file)
    except TimeoutError as exc:
        raise error(
            f"{path}: this pipe sent nothing for {SILENCE_S:.0f} s; save {what} to a file "
            "and give that"
        ) from exc
    except (OSError, ValueError) as exc:  # ValueError: the name contains a NUL byte
        reason = getattr(exc, "strerror", None) or str(exc)
        if isinstance(exc, PermissionError):  # the path may be right, so do not ask for another
            cure = "give this user read access to it"
        raise error(f"{path}: cannot be read: {reason}; {cure}") from exc
    if data is None:
        raise error(f"{path}: larger than {_format(limit)}, so it is not {what}; check the path")
    return data


def check_regular(path: str | Path, what: str, error: type[DetectVideoError]) -> None:
    """Raise ``error`` if ``path`` is a pipe, a device or a folder. Call this for files that are
    read in pieces or by a library. If the file is missing, do nothing: its reader reports that."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise error(f"{path}: is {kind}, not {what}; give a regular file instead")


def _read(file: int, limit: int) -> bytes | None:
    """Return the content; None if it exceeds ``limit``. A silent pipe raises TimeoutError."""
    status = os.fstat(file)
    if status.st_size > limit:
        return None
    pipe = (status.st_dev, status.st_ino) if stat.S_ISFIFO(status.st_mode) else None
    if pipe in _pipes:
        return _pipes[pipe]
    ready = select.poll()
    ready.register(file, select.POLLIN)
    blocks: list[bytes] = []
    length = 0
    while True:
        # When the last writer closes the pipe, the poll returns POLLHUP, and the read gives b"".
        if not ready.poll(SILENCE_S * 1000):
            raise TimeoutError
        try:
            block = os.read(file, min(BLOCK_BYTES, limit + 1 - length))
        except BlockingIOError:  # another reader took the data
            continue
        if not block:
            break
        blocks.append(block)
        length += len(block)
        if length > limit:
            return None
    data = b"".join(blocks)
    if pipe is not None:
        _pipes[pipe] = data
    return data


def _format(limit: int) -> str:
    for shift, unit in ((30, "GB"), (20, "MB"), (10, "KB")):
        if limit >= 1 << shift:
            return f"{limit >> shift} {unit}"
    return f"{limit} bytes"
