"""The base of sinks that write a folder. They never delete other programs' files.

``close`` distinguishes three cases:
- The folder does not exist yet: ``NAME.partial`` gets its name.
- The folder is empty, or only holds files listed in an earlier run's hidden manifest: it becomes
  ``NAME.old``, ``NAME.partial`` gets its name, and the listed files are removed one by one.
- The folder contains other files, or is the working directory or a mount point: our files are moved
  into it one by one. They only replace files of the same name from an earlier run.

We never replace a file that we did not write: ``add`` refuses its name. Our files may be in
subfolders, but not in links to folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath
from typing import ClassVar

from detector.core.errors import OutputError
from detector.core.errors.guard import refuse_folder_of_kept
from detector.core.errors.writing import sync_folder
from detector.core.sinks._naming import free_name
from detector.core.sinks._partial import Partial, output_errors
from detector.core.sinks.base import Sink
from detector.core.types import SourceInfo


class FolderSink(Sink):
    manifest: ClassVar[str]  # hidden file that lists the names of our files, one per line
    content: ClassVar[str]  # what messages call the files, such as "crops"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._partial: Partial | None = None
        self._written: list[str] = []
        self._earlier: set[str] = set()  # names that an earlier run wrote in the folder
        self._used_names: set[str] = set()

    def open(self, info: SourceInfo) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(
                f"cannot write {self.content} into {self.path}: it is not a folder; "
                "give a folder with -o"
            )
        partial = Partial(self.path, info.path, folder=True)
        try:
            self._earlier = self._read_manifest(partial.target)
            for below in _list_folders(self._earlier):  # an earlier output may now be the source
                refuse_folder_of_kept(partial.target / below)
            with output_errors(self.path):
                self._clear_stale(partial.path)
                self._list = os.open(
                    partial.path / self.manifest, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666
                )
        except BaseException:
            partial.release()
            raise
        self._partial = partial

    @property
    def target(self) -> Path:
        assert self._partial is not None, "write before open"
        return self._partial.target

    def add(self, name: str, data: bytes) -> None:
        """Write one file. ``name`` is relative, and may include folders."""
        assert self._partial is not None, "write before open"
        if _is_blocked(self.target, name) or (
            name not in self._earlier and os.path.lexists(self.target / name)
        ):
            raise OutputError(
                f"cannot write {self.content} into {self.path}: {name} already exists, and "
                "detect-video did not write it; move it, or choose another folder with -o"
            )
        with output_errors(self.path):
            # List the name before creating the file, so that every existing file is listed.
            os.write(self._list, os.fsencode(name) + b"\n")
            if "/" in name:
                (self._partial.path / name).parent.mkdir(parents=True, exist_ok=True)
            with open(self._partial.path / name, "wb") as file:
                file.write(data)
        self._written.append(name)

    def append(self, name: str, data: bytes) -> None:
        """Append to a file, creating it in the first call. ``name``: see ``add``."""
        if name not in self._used_names:
            self._used_names.add(name)
            self.add(name, data)
            return
        assert self._partial is not None, "write before open"
        with output_errors(self.path), open(self._partial.path / name, "ab") as file:
            file.write(data)

    def free_name(self, stem: str, suffix: str) -> str:
        """Return an unused name: ``stem`` + ``suffix``, or ``stem`` + "-2" + ``suffix``, ..."""
        return free_name(stem, suffix, self._used_names)

    def close(self) -> Path | None:
        if self._partial is not None:
            partial = self._partial
            with output_errors(self.path):
                for name in [*self._written, self.manifest]:
                    with open(partial.path / name, "rb") as file:
                        os.fsync(file.fileno())
                for folder in _list_folders(self._written):
                    sync_folder(partial.path / folder)
                sync_folder(partial.path)
                if not self._replace_folder(partial):
                    self.notes.append(
                        f"{self.path} existed and could not be replaced in one step, so the "
                        f"{self.content} were moved into it one by one"
                    )
                    self._move_into(partial.path, partial.target)
                sync_folder(partial.target.parent)
            self._release()
        return self.path

    def abort(self) -> Path | None:
        partial = self._partial
        if partial is None:
            return None
        self._release()
        with suppress(OSError):
            if self._written:
                return partial.path
            self._unlink_listed(partial.path)
            partial.path.rmdir()
        return None

    def _release(self) -> None:
        assert self._partial is not None
        os.close(self._list)
        self._partial.release()
        self._partial = None

    def _read_manifest(self, folder: Path) -> set[str]:
        """Return the listed names that are inside the folder, and the manifest's own name."""
        try:
            lines = (folder / self.manifest).read_bytes().split(b"\n")
        except OSError:
            return set()
        names = {os.fsdecode(line) for line in lines}
        return {name for name in names if _is_inside(folder, name)} | {self.manifest}

    def _has_only_ours(self, folder: Path) -> bool:
        listed = self._read_manifest(folder)
        folders = _list_folders(listed)
        for parent, subfolders, files in os.walk(folder):
            below = os.path.relpath(parent, folder)
            prefix = "" if below == os.curdir else f"{below}/"
            for name in subfolders:  # includes links to folders, which are never ours
                if prefix + name not in folders or os.path.islink(os.path.join(parent, name)):
                    return False
            if not {prefix + name for name in files} <= listed:
                return False
        return True

    def _unlink_listed(self, folder: Path) -> None:
        """Remove the listed files, then the manifest, so that every remaining file is listed."""
        listed = self._read_manifest(folder)
        for name in sorted(listed - {self.manifest}):
            (folder / name).unlink(missing_ok=True)
        _remove_folders(folder, listed)
        (folder / self.manifest).unlink(missing_ok=True)

    def _clear_stale(self, partial: Path) -> None:
        if not self._has_only_ours(partial):
            raise OutputError(
                f"{partial} holds files that detect-video did not write; "
                "move them, or choose another -o"
            )
        self._unlink_listed(partial)

    def _replace_folder(self, partial: Partial) -> bool:
        """Give the new folder its final name. Return False if the old one cannot be replaced."""
        target = partial.target
        if not target.exists():
            os.rename(partial.path, target)
            return True
        # If we replaced the working directory, the user's shell would be left in a deleted folder.
        if not self._has_only_ours(target) or target.samefile(os.curdir):
            return False
        old = target.with_name(f"{target.name}.old")
        if os.path.lexists(old):  # rename would replace an empty folder
            return False
        try:
            os.rename(target, old)
        except OSError:  # the folder is a mount point, for example
            return False
        try:
            os.rename(partial.path, target)
        except OSError:
            os.rename(old, target)
            raise
        self._unlink_listed(old)
        old.rmdir()  # fails if another program has since created a file in it
        return True

    def _move_into(self, partial: Path, target: Path) -> None:
        known = self._read_manifest(target)
        with open(target / self.manifest, "ab") as listed:  # list the names first, as in ``add``
            for name in self._written:
                if name not in known:
                    listed.write(os.fsencode(name) + b"\n")
            listed.flush()
            os.fsync(listed.fileno())
        for name in self._written:
            if "/" in name:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial / name, target / name)
        for folder in _list_folders(self._written):
            sync_folder(target / folder)
        sync_folder(target)
        _remove_folders(partial, self._written)
        (partial / self.manifest).unlink()
        partial.rmdir()


def _list_folders(names: Iterable[str]) -> set[str]:
    return {str(folder) for name in names if "/" in name for folder in PurePath(name).parents} - {
        os.curdir
    }


def _remove_folders(folder: Path, names: Iterable[str]) -> None:
    for below in sorted(_list_folders(names), reverse=True):
        with suppress(OSError):
            (folder / below).rmdir()


def _is_inside(folder: Path, name: str) -> bool:
    parts = name.split("/")
    return not {"", os.curdir, os.pardir}.intersection(parts) and not _is_blocked(folder, name)


def _is_blocked(folder: Path, name: str) -> bool:
    """Return whether a file or link exists where ``name`` needs a folder."""
    return "/" in name and any(
        os.path.lexists(folder / below)
        and (os.path.islink(folder / below) or not os.path.isdir(folder / below))
        for below in _list_folders([name])
    )
