"""What the sinks of folders share: many files under one name, and nothing deleted that we did not
write.

``close`` distinguishes three cases:
- The folder does not exist yet, or is empty: one rename turns ``NAME.partial`` into it.
- The folder holds only what an earlier run listed in its hidden manifest: it steps aside, the new
  folder takes its name, and the old files are removed one by one, as listed.
- Any other folder (somebody's own files are in it, it is the current one, or a mount point): each
  file
  moves in by itself and replaces only its namesake.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from detector.errors import OutputError
from detector.sinks._partial import Partial, fsync_folder, output_errors
from detector.sinks.base import Sink
from detector.types import SourceInfo


class FolderSink(Sink):
    """Subclasses call ``add`` for every file."""

    manifest: ClassVar[str]  # hidden file in the folder with the names that we wrote, one a line
    holds: ClassVar[str]  # what the files are, for messages

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._partial: Partial | None = None
        self._written: list[str] = []
        self._taken: set[str] = set()

    def open(self, info: SourceInfo) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(
                f"cannot write {self.holds} into {self.path}: it is not a folder; "
                "give a folder with -o"
            )
        partial = Partial(self.path, info.path, folder=True)
        try:
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
        """The folder, links followed."""
        assert self._partial is not None, "write before open"
        return self._partial.target

    def add(self, name: str, data: bytes) -> None:
        assert self._partial is not None, "write before open"
        with output_errors(self.path):
            os.write(self._list, os.fsencode(name) + b"\n")  # first: what exists is always listed
            with open(self._partial.path / name, "wb") as file:
                file.write(data)
        self._written.append(name)

    def free_name(self, stem: str, suffix: str) -> str:
        """``stem`` + ``suffix``, or ``NAME-2``: two source folders may hold the same name."""
        name, n = stem + suffix, 1
        while name in self._taken:
            n += 1
            name = f"{stem}-{n}{suffix}"
        self._taken.add(name)
        return name

    def close(self) -> Path:
        if self._partial is not None:
            partial = self._partial
            with output_errors(self.path):
                for name in [*self._written, self.manifest]:
                    _fsync(partial.path / name)
                if not self._swap(partial):
                    self.notes.append(
                        f"{self.path} existed and could not be replaced as a whole; "
                        f"the {self.holds} were moved into it one by one"
                    )
                    self._move_into(partial.path, partial.target)
                fsync_folder(partial.target.parent)
            self._forget()
        return self.path

    def abort(self) -> Path | None:
        partial = self._partial
        if partial is None:
            return None
        self._forget()
        with suppress(OSError):
            if self._written:
                return partial.path
            self._unlink_listed(partial.path)
            partial.path.rmdir()
        return None

    def _forget(self) -> None:
        assert self._partial is not None
        os.close(self._list)
        self._partial.release()
        self._partial = None

    def _listed(self, folder: Path) -> set[str]:
        """The names in the manifest, and its own; empty without one."""
        try:
            lines = (folder / self.manifest).read_bytes().split(b"\n")
        except OSError:
            return set()
        return {os.fsdecode(line) for line in lines if line and b"/" not in line} | {self.manifest}

    def _only_ours(self, folder: Path) -> bool:
        return set(os.listdir(folder)) <= self._listed(folder)

    def _unlink_listed(self, folder: Path) -> None:
        """The manifest goes last, so that every file that is still there is still listed."""
        for name in [*sorted(self._listed(folder) - {self.manifest}), self.manifest]:
            (folder / name).unlink(missing_ok=True)

    def _clear_stale(self, partial: Path) -> None:
        """Empties what a killed run left under the temporary name."""
        if not self._only_ours(partial):
            raise OutputError(
                f"{partial} holds files that detect-video did not write; "
                "move them, or choose another -o"
            )
        self._unlink_listed(partial)

    def _swap(self, partial: Partial) -> bool:
        """Gives the whole new folder the final name. False where somebody else's files are under
        it.
        """
        target = partial.target
        if not target.exists():
            os.rename(partial.path, target)
            return True
        # The current folder stays: a shell that stands in it would be left in a deleted one.
        if not self._only_ours(target) or target.samefile(os.curdir):
            return False
        old = target.with_name(f"{target.name}.old")
        try:
            os.rename(target, old)
        except OSError:  # something is in the way, or the folder is a mount point
            return False
        try:
            os.rename(partial.path, target)
        except OSError:
            os.rename(old, target)
            raise
        self._unlink_listed(old)
        old.rmdir()  # fails, and deletes nothing, if somebody has put another file there meanwhile
        return True

    def _move_into(self, partial: Path, target: Path) -> None:
        for name in self._written:
            os.replace(partial / name, target / name)
        fsync_folder(target)
        (partial / self.manifest).unlink()
        partial.rmdir()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
