"""Where results go: the folders of an output, and how an item's results come to stand there whole.

    OUT/files/NAME/            an item's outputs, and done.json, its marker
    OUT/detections/source=.../ its rows in the dataset (dataset.py)
    OUT/manifest.sqlite        which items there are; of a shard: manifest-2-of-4.sqlite
    OUT/job.json               what every worker obeys (settings.py)
    OUT/settings.yaml          the same for --config of a single run
    OUT/failures.jsonl         what was set aside; of a shard: failures-2-of-4.jsonl

An item is written into a hidden folder of OUT and renamed when it is whole, marker and all. So a
marker means whole results, whatever was killed when. The contract is ``Outputs``; what places
results elsewhere than in a folder of this system would be another class of these methods.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from detector.errors import OutputError, UsageError
from detector.errors.writing import NO_LOCKS, sync_folder
from detector.jobs.batch.listing import WHOLE, Shard, refuse_elsewhere
from detector.session.batch import ItemRecord
from detector.session.codec import from_json, to_json

FILES, MARKER = "files", "done.json"
SCRATCH = ".detect-video-item-"  # a hidden folder for each item under way: the digest of its name
LOCK = ".detect-video-batch"
MARKER_BYTES = 4 << 20
CURE = "choose another folder with -o"


class Outputs(Protocol):
    """Places the results of items. Workers have one each; it holds nothing open."""

    place: str  # for ``open_outputs``, in another process

    def begin(self, name: str) -> Path:
        """An empty folder of this machine for the results of an item. What earlier tries left
        under way is removed."""

    def commit(self, name: str, scratch: Path, record: ItemRecord) -> None:
        """Makes the content of ``scratch`` the results of the item, in place of earlier ones. The
        marker comes last: it never stands without whole results."""

    def discard(self, name: str) -> None:
        """Removes what tries of this item left under way."""

    def discard_all(self) -> None:
        """The same of all items, where nobody else is at work."""

    def has_marker(self, name: str) -> bool: ...

    def read_marker(self, name: str) -> ItemRecord | None:
        """None where there is none, or none that can be read: the item is not done."""

    def remove(self, name: str) -> None:
        """Removes the results of an item."""


def open_outputs(place: str) -> Outputs:
    """Raises UsageError for a place that cannot be written so far."""
    refuse_elsewhere(place)
    return LocalOutputs(place)


class LocalOutputs:
    """A folder of this system, which may be a network file system."""

    def __init__(self, place: str) -> None:
        self.place = os.path.abspath(place)
        self._files = os.path.join(self.place, FILES)

    def folder(self, name: str) -> Path:
        return Path(self._files, name)

    def begin(self, name: str) -> Path:
        scratch = self._new_place(name)
        with _output_errors(scratch):
            self.discard(name)
            scratch.mkdir(parents=True)
        return scratch

    def commit(self, name: str, scratch: Path, record: ItemRecord) -> None:
        target = self.folder(name)
        with _output_errors(target):
            # Only its content is synced: where a power loss takes its name, the item is not done.
            with open(scratch / MARKER, "wb", buffering=0) as file:
                file.write(to_json(record).encode())
                os.fsync(file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(target):
                self._set_aside(name, target)
            os.rename(scratch, target)
            sync_folder(target.parent)
        self.discard(name)

    def _set_aside(self, name: str, target: Path) -> None:
        """Renames earlier results to a hidden name: a folder cannot be replaced at once. They were
        of another version of the source, or of other settings."""
        aside = self._new_place(name)
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.rename(target, aside)

    def _new_place(self, name: str) -> Path:
        """A name that nobody else draws, as far below OUT as the results will be: what leads from
        there to the source leads there from the results too."""
        return Path(self._scratch(name), *["x"] * name.count("/"), secrets.token_hex(4))

    def _scratch(self, name: str) -> str:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return os.path.join(self.place, f"{SCRATCH}{digest[:16]}")

    def discard(self, name: str) -> None:
        shutil.rmtree(self._scratch(name), ignore_errors=True)

    def discard_all(self) -> None:
        """Removes what killed jobs left under way. Only where nobody else is at work here."""
        for path in Path(self.place).glob(f"{SCRATCH}*"):
            shutil.rmtree(path, ignore_errors=True)

    def has_marker(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._files, name, MARKER))

    def read_marker(self, name: str) -> ItemRecord | None:
        try:
            with open(os.path.join(self._files, name, MARKER), "rb") as file:
                return from_json(file.read(MARKER_BYTES), ItemRecord, f"{name}/{MARKER}")
        except (OSError, UsageError):
            return None

    def remove(self, name: str) -> None:
        target = self.folder(name)
        with _output_errors(target):
            if os.path.lexists(target):
                self._set_aside(name, target)
        self.discard(name)
        for parent in target.parents:
            if parent == Path(self._files):
                break
            with suppress(OSError):
                parent.rmdir()  # where it is empty


@contextmanager
def _output_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{target}: cannot be written: {error.strerror}; free space, or {CURE}"
        ) from error


# The names of a job's own files.


def named(stem: str, suffix: str, shard: Shard) -> str:
    """``manifest.sqlite``, or ``manifest-2-of-4.sqlite`` of a shard."""
    return f"{stem}{suffix}" if shard == WHOLE else f"{stem}-{shard}{suffix}"


def make_output_folder(place: str) -> None:
    """Raises OutputError where it cannot be made or written."""
    refuse_elsewhere(place)
    try:
        os.makedirs(os.path.join(place, FILES), exist_ok=True)
    except OSError as error:
        why = "a file is in the way" if isinstance(error, FileExistsError) else error.strerror
        raise OutputError(f"{place}: the output folder cannot be made: {why}; {CURE}") from error
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"{place}: no permission to write there; {CURE}")


# One job at a time, or the shards of one job.


@contextmanager
def locked(place: str, shard: Shard) -> Iterator[None]:
    """Keeps other jobs out of an output folder. The shards of one job may be there side by side,
    each once.

    The kernel gives a lock up with its process, so that a killed job leaves none. Where the file
    system has no locks, nobody is kept out. Raises OutputError where another job is there.
    """
    held: list[int] = []
    try:
        whole = _open_lock(place, LOCK)
        held.append(whole)
        if not _take(whole, shared=shard != WHOLE):
            raise OutputError(
                f"{place}: another batch job is running there; wait for it, or {CURE}"
            )
        if shard != WHOLE:
            own = _open_lock(place, f"{LOCK}-{shard}")
            held.append(own)
            if not _take(own):
                raise OutputError(f"{place}: --shard {shard.number}/{shard.of} is running already")
            if other := _other_division(place, shard):
                raise OutputError(
                    f"{place}: a shard of another division ({other}) is running there; all shards "
                    "that run at once need one N"
                )
        yield
    finally:
        for file in held:
            os.close(file)


def is_running(place: str) -> bool:
    """Whether a job, or a shard of one, runs there now, as far as the file system tells."""
    try:
        file = os.open(os.path.join(place, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _take(file)
    finally:
        os.close(file)


def _other_division(place: str, shard: Shard) -> str | None:
    for path in Path(place).glob(f"{LOCK}-*-of-*"):
        text = path.name.removeprefix(f"{LOCK}-")
        if text.endswith(f"-of-{shard.of}"):
            continue
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if not _take(file):
                    return text
            finally:
                os.close(file)
    return None


def _open_lock(place: str, name: str) -> int:
    path = os.path.join(place, name)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}; {CURE}") from error


def _take(file: int, *, shared: bool = False) -> bool:
    """False where another has the lock; True where the file system has none."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno not in NO_LOCKS:
            raise
    return True
