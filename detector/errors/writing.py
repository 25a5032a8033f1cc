"""The one way to write a file: under its name it is whole, or it is not there. What fails is an OutputError."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from detector.errors import OutputError


@contextmanager
def whole_file(target: Path, cure: str) -> Iterator[Path]:
    """Gives a path beside ``target`` to write to. The file becomes ``target`` when the block ends well and is removed
    when it does not. A process that is killed leaves at most a hidden file.

    Raises OutputError for every OSError; ``cure`` says what the user can do about it.
    """
    temporary = target.parent / f".{os.getpid()}-{target.name}"  # numpy needs the suffix as it is
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder, and a file is wanted")
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # before the rename: else a crash could leave an empty file
        os.replace(temporary, target)
    except OSError as error:
        raise _output_error(target, error, cure) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(target: Path, content: bytes, cure: str = "choose another with -o") -> None:
    """Writes a file whole or not at all, and makes its folder where there is none. Raises OutputError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _output_error(target, error, cure) from error
    with whole_file(target, cure) as temporary:
        temporary.write_bytes(content)


def _output_error(target: Path, error: OSError, cure: str) -> OutputError:
    return OutputError(f"{target}: cannot be written: {error.strerror or error}; {cure}")
