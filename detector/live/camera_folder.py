"""Opens folders of cameras without following links, and locks them for one run."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from detector.core.errors import OutputError
from detector.core.errors.writing import has_permission, take_lock

BLOCK = 65_536  # bytes per read when searching for a line end
MOST_NAMES = 10_000
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_folder(path: Path, depth: int = 1) -> int:
    """Open or create a folder. Raises OSError if any of the last ``depth`` parts is a link."""
    above = path.parents[depth - 1]
    above.mkdir(parents=True, exist_ok=True)
    folder = os.open(above, FOLDER)
    for name in path.parts[-depth:]:
        outer = folder
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=outer)
            folder = _open(name, FOLDER, outer)
        finally:
            os.close(outer)
    return folder


def open_file(path: Path, flags: int, depth: int = 1, parent: int = -1) -> int:
    """Open or create a file without following links. ``parent``: its folder, if already open."""
    folder = os.dup(parent) if parent >= 0 else open_folder(path.parent, depth)
    try:
        return _open(path.name, flags | os.O_CREAT | os.O_CLOEXEC, folder)
    finally:
        os.close(folder)


def _open(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(error.errno, f"{name} is a link, or not a folder; remove it") from error
        raise


def open_to_read(path: str, flags: int) -> int:
    """Open a file without following a link. ``open`` takes this function as its ``opener``."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def append_whole(file: int, data: bytes) -> None:
    """Append all of ``data``, or raise OSError and append nothing."""
    before = os.fstat(file).st_size
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, before)
        raise


def find_last_line_end(file: int, size: int) -> int:
    """Return the number of bytes up to and including the last line end; 0 if none."""
    end = size
    while end > 0:
        begin = max(0, end - BLOCK)
        newline = os.pread(file, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def find_free_name(folder: Path, stem: str, suffix: str) -> str:
    for number in range(1, MOST_NAMES):
        name = f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}"
        if not os.path.lexists(folder / name):
            return name
    raise OSError(f"{folder / stem}: {MOST_NAMES} files with that name already exist")


def list_names_of_day(stem: str, day: str, suffix: str) -> list[str]:
    """Return the possible names of a day's files. A change of columns starts another file."""
    return [f"{stem}-{day}{more}{suffix}" for more in ("", *(f"-{n}" for n in range(2, 10)))]


def lock_folder(path: Path, depth: int = 1) -> int:
    """Open and lock a folder. Raises OutputError if it is in use or not writable."""
    try:
        while True:
            folder = open_folder(path, depth)
            why = None if has_permission(path) else "no permission; grant it"
            if why is None and not take_lock(folder):
                why = "another run is using it; wait for it"
            if why is None and is_same_file(path, folder):
                return folder
            os.close(folder)
            if why is not None:  # otherwise another run removed the folder meanwhile: try again
                raise OutputError(
                    f"cannot write into {path}: {why}, or choose another folder with -o"
                )
    except OSError as error:
        raise OutputError(
            f"cannot write into {path}: {error.strerror or error}; choose another folder with -o"
        ) from error


def is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether the path still leads to this open file or folder."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def remove_if_empty(camera: Path) -> None:
    """Remove a camera's folder and subfolders if they are empty and not locked."""
    with suppress(OSError):
        folder = os.open(camera, FOLDER | os.O_NOFOLLOW)
        try:
            for inner in ("video", "snapshots", "tracks", "") if take_lock(folder) else ():
                with suppress(OSError):
                    (camera / inner).rmdir()
        finally:
            os.close(folder)
