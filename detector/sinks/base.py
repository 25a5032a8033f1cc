"""The contract of a sink: rows or pictures in, one whole file out, or none.

A sink writes to a temporary name beside its target (``x.partial.mp4`` for ``x.mp4``), and renames on ``close``. A
lock on the temporary file refuses a second writer of the same target.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from detector.errors import OutputError
from detector.types import Detections, Frame, SourceInfo


class Sink:
    """``name`` is the key of the output ("video", "jsonl", ...); ``path`` the final path; ``notes`` what to tell."""

    name: str
    suffix: ClassVar[str] = ""  # of the files that it makes, with its dot; "" for a folder
    path: Path
    notes: list[str]

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.notes = []

    def open(self, info: SourceInfo) -> None:
        """Creates the temporary file. Raises OutputError where the target cannot be written."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        """Takes one frame, in order. May keep nothing of ``frame.image``: its buffer is used again."""
        raise NotImplementedError

    def close(self) -> Path:
        """Finishes, checks, fsyncs and renames the file; returns its final path. A second call only returns it."""
        raise NotImplementedError

    def abort(self) -> Path | None:
        """After a failure: keeps what is whole under the temporary name and returns that path, or removes it and
        returns None. The final name is not touched. May be called after a failed ``close``; never raises."""
        raise NotImplementedError


class Partial:
    """The temporary file or folder beside a target: created, locked, and renamed when it is whole.

    A link is followed, so that two names of one target share one lock and the link outlives the run. What a killed
    run left under the temporary name is used again: the kernel dropped its lock. ``source`` is what must survive.
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
        """Onto the disk, then under the final name: after a crash there is the old file or the whole new one."""
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
    """Neither the target nor its temporary name may be the source itself, under whatever name."""
    for path in written:
        with suppress(OSError):
            if source and path.samefile(source):
                raise OutputError(
                    f"cannot write {asked}: it would overwrite the source {source}; choose another -o"
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
    """Takes the lock, then looks whether the name still means this file: its former owner may have renamed it."""
    busy = OutputError(
        f"cannot write {target}: another run is writing it; wait for it, or write elsewhere with -o"
    )
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    except OSError as error:  # some network file systems have no locks: go on without
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
    try:
        same = os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        same = False
    if not same:
        raise busy


def fsync_folder(folder: Path) -> None:
    """Makes a rename in ``folder`` outlive a crash."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what a file system says that cannot sync folders
            raise
    finally:
        os.close(fd)


@contextmanager
def output_errors(target: Path, kinds: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Turns the system's refusals into one line for whoever must act. The one door for all sinks."""
    try:
        yield
    except kinds as error:
        raise OutputError(explain(error, target)) from error


def explain(error: Exception, target: Path) -> str:
    """One line: what could not be written, why, and what to do."""
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return f"disk full: {target} needs more space in {target.absolute().parent}; free some, or write elsewhere with -o"
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


# ----------------------------------------------------------------------
# What the sinks of rows share: whole blocks of lines straight to the file, nothing kept in memory.


class RowsSink(Sink):
    """A text file to which each frame adds its whole lines in one system call.

    So a killed process leaves whole lines: nothing waits in a buffer of ours. (The kernel may cut a single write of
    many pages when a kill hits just then; such a line lacks its newline.) The call costs 3 us for a line of 930
    bytes with ten objects, making the line 44 us.
    """

    header: str = ""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._partial: Partial | None = None
        self._whole_bytes = 0  # up to the end of the last whole line

    def open(self, info: SourceInfo) -> None:
        self._info = info
        self._partial = Partial(self.path, info.path)
        with output_errors(self.path):
            os.ftruncate(self._partial.fd, 0)
        self._append(self.header)

    def rows(self, frame: Frame, detections: Detections) -> str:
        """The whole lines of one frame, each with its line end; "" for none."""
        raise NotImplementedError

    def write(self, frame: Frame, detections: Detections) -> None:
        self._append(self.rows(frame, detections))

    def _append(self, lines: str) -> None:
        assert self._partial is not None, "write before open"
        # A file name of undecodable bytes holds lone surrogates, which UTF-8 has not: \udc80 is what JSON writes.
        data = lines.encode("utf-8", "backslashreplace")
        wanted = self._whole_bytes + len(data)
        with output_errors(self.path):
            while data:  # a full disk takes a part first, and refuses the rest
                data = data[os.write(self._partial.fd, data) :]
        self._whole_bytes = wanted

    def close(self) -> Path:
        if self._partial is not None:
            self._partial.commit()
            self._partial = None
        return self.path

    def abort(self) -> Path | None:
        partial, self._partial = self._partial, None
        if partial is None:
            return None
        if self._whole_bytes <= len(self.header):
            partial.discard()
            return None
        try:
            os.ftruncate(partial.fd, self._whole_bytes)
        except OSError:
            partial.discard()
            return None
        partial.release()
        return partial.path


def plain(detections: Detections) -> Iterator[tuple[str, int, float, list[float]]]:
    """Class name, class id, score, [x1, y1, x2, y2] of each, rounded, as plain Python values.

    float32 becomes a Python float before it is rounded: 0.91, not 0.9100000262.
    """
    boxes, scores, ids = (
        detections.boxes.tolist(),
        detections.scores.tolist(),
        detections.class_ids.tolist(),
    )
    for i, box in enumerate(boxes):
        rounded = [round(value, 2) + 0.0 for value in box]  # + 0.0: no -0.0
        yield detections.name(i), ids[i], round(scores[i], 4), rounded


# ----------------------------------------------------------------------
# What the sinks of folders share: many files, one name, and nothing deleted that we did not write.
#
# Three cases at ``close``:
# - no such folder yet, or an empty one: ``NAME.partial`` becomes it in one rename;
# - a folder that holds only what an earlier run listed in its hidden manifest: it steps aside, the new one takes its
#   name, the old one is removed, listed file by listed file;
# - any other folder (somebody's own files are in it, it is the current one, or a mount point): each file moves in by
#   itself, replacing only its namesake.


class FolderSink(Sink):
    """Subclasses call ``add`` for every file. ``manifest``: a hidden file with the names that we wrote, one a line;
    ``holds``: what they are, for messages."""

    manifest: ClassVar[str]
    holds: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._partial: Partial | None = None
        self._written: list[str] = []
        self._taken: set[str] = set()

    def open(self, info: SourceInfo) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(
                f"cannot write {self.holds} into {self.path}: it is not a folder; give a folder with -o"
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
        """Two folders may hold pictures of one name: the second becomes ``NAME-2``."""
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
                        f"{self.path} was there and could not be replaced as a whole: {self.holds} went in one by one"
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
        """What the manifest lists; empty without one."""
        try:
            lines = (folder / self.manifest).read_bytes().split(b"\n")
        except OSError:
            return set()
        return {os.fsdecode(line) for line in lines if line and b"/" not in line} | {self.manifest}

    def _only_ours(self, folder: Path) -> bool:
        return set(os.listdir(folder)) <= self._listed(folder)

    def _unlink_listed(self, folder: Path) -> None:
        """The list goes last: what is still there is still listed."""
        for name in [*sorted(self._listed(folder) - {self.manifest}), self.manifest]:
            (folder / name).unlink(missing_ok=True)

    def _clear_stale(self, partial: Path) -> None:
        """Empties what a killed run left under the temporary name."""
        if not self._only_ours(partial):
            raise OutputError(
                f"{partial} holds files that detect-video did not write; move them, or choose another -o"
            )
        self._unlink_listed(partial)

    def _swap(self, partial: Partial) -> bool:
        """The whole new folder takes the final name, if nobody else's files are under it. False: they are."""
        target = partial.target
        if not target.exists():
            os.rename(partial.path, target)
            return True
        if not self._only_ours(target) or target.samefile(
            os.curdir
        ):  # nobody likes to lose the folder he stands in
            return False
        old = target.with_name(f"{target.name}.old")
        try:
            os.rename(
                target, old
            )  # refused where something is in the way, or the folder is a mount point
        except OSError:
            return False
        try:
            os.rename(partial.path, target)
        except OSError:
            os.rename(old, target)
            raise
        self._unlink_listed(old)
        old.rmdir()  # refuses, should anything else have come in
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
