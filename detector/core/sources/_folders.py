"""List folders: their pictures, their videos and their subfolders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from detector.core.errors import SourceError
from detector.core.errors.writing import is_output
from detector.core.sources._contents import PICTURE, VIDEO, kind_of, kind_of_name


class Folder(NamedTuple):
    """Files, subfolders, and the number of ``special`` entries (dead links, pipes)."""

    files: list[str]
    folders: list[str]
    special: int = 0

    @property
    def pictures(self) -> list[str]:
        return sorted(filter(is_picture, self.files), key=natural_key)

    @property
    def videos(self) -> list[str]:
        return sorted(filter(is_video, self.files), key=natural_key)


def is_picture(path: str) -> bool:
    return kind_of_name(path) is not None and kind_of(path) == PICTURE


def is_video(path: str) -> bool:
    return kind_of_name(path) is not None and kind_of(path) == VIDEO


def list_folder(folder: str) -> Folder:
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise SourceError(
            f"{folder}: cannot be listed ({error.strerror}); check its permissions: ls -ld {folder}"
        ) from error
    # DirEntry.is_file raises for a link to itself; isfile returns False.
    files = [path for path in paths if os.path.isfile(path)]
    folders = [] if len(files) == len(paths) else [path for path in paths if os.path.isdir(path)]
    return Folder(files, folders, len(paths) - len(files) - len(folders))


def walk_files(folder: str, entered: set[str] | None = None) -> Iterator[str]:
    """Yield the files below a folder, except hidden ones and those in folders of outputs.
    ``entered``: real paths of folders to skip; the path of each visited folder is added."""
    entered = set() if entered is None else entered
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        real = os.path.realpath(current)
        if real in entered or (current != folder and is_output(current)):
            continue
        entered.add(real)
        try:
            contents = list_folder(current)
        except SourceError:
            continue
        waiting += sorted(contents.folders, reverse=True)
        yield from contents.files


def natural_key(path: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts img2 before img10, since it compares digits as numbers."""
    parts = re.split(r"(\d+)", path)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
