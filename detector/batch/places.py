"""The folders of an output, and the atomic placement of an item's results in them.

    OUT/files/NAME/            an item's outputs, and done.json, its marker
    OUT/detections/source=.../ its rows in the dataset (dataset.py)
    OUT/manifest.sqlite        the items and their states; manifest-2-of-4.sqlite for a shard
    OUT/job.json               the settings of every worker (settings.py)
    OUT/settings.yaml          the same settings, for --config of a single run
    OUT/failures.jsonl         the failed items; failures-2-of-4.jsonl for a shard

An item is written into a hidden folder of OUT. When results and marker are complete, the folder is
renamed. So a marker proves complete results, no matter when a job is killed. ``Outputs`` is the
contract; bucket.py writes results into an object store; pieces.py keeps the parts of long items.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from detector.batch import dataset
from detector.batch.documents import ItemRecord, JobSettings, Seal
from detector.batch.layout import CURE, FILES, MARKER, MARKER_BYTES, ROWS, SCRATCH, remove_tree
from detector.batch.listing import Shard, leads_out, names_above
from detector.core.errors import OutputError, UsageError
from detector.core.errors.writing import has_permission, sync_folder
from detector.core.session.codec import SCHEMA, decode, to_json
from detector.core.sinks._partial import output_errors
from detector.core.sources._addresses import is_address, local_path

Marker = TypeVar("Marker", ItemRecord, Seal)


class Outputs(Protocol):
    place: str  # the output's folder or address; other processes call ``open_outputs`` with it
    home: str  # the local folder of the job's own files: manifest, settings, locks

    def begin(self, name: str) -> Path:
        """Remove files of an item's earlier tries. Return an empty local folder for its results."""

    def commit(self, name: str, scratch: Path, record: ItemRecord) -> None:
        """Make the content of ``scratch`` the results of the item; the marker comes last."""

    def discard(self, name: str) -> None:
        """Remove the unfinished results of this item."""

    def discard_all(self) -> None:
        """Remove the unfinished results of all items. No other job may be running."""

    def has_marker(self, name: str) -> bool: ...

    def is_done(self, name: str, key: str) -> bool:
        """Return whether a marker exists. In a local folder, also check its key and its outputs."""

    def is_whole(self, record: ItemRecord | Seal) -> bool:
        """Return whether the marker's outputs exist and have the sizes that it states."""

    def read_marker(self, name: str) -> ItemRecord | None:
        """Return the marker. None if it is absent or unreadable; the item is then not done."""

    def remove(self, name: str) -> None:
        """Remove the results of an item."""

    # An item's rows in the dataset. Only ``gather`` and ``gather_missing`` need pyarrow.

    def gather(self, name: str, rows: Path) -> None:
        """Write the partition of an item from its rows, in place of an earlier one."""

    def gather_missing(self, names: Iterable[str], stopped: Callable[[], bool]) -> None:
        """Write the missing partitions of these finished items."""

    def ungather(self, name: str) -> None:
        """Remove the partition of an item, if it has one."""

    # The job's own files.

    def publish(self, settings: JobSettings, *, first: bool) -> JobSettings:
        """Write the settings to the place and return them. ``first``: the job had none. If another
        shard has written its settings meanwhile, keep and return those instead."""

    def keep_home(self, shard: Shard, *, last: bool = False) -> None:
        """Copy the job's own files to the place, at most once a minute but always if ``last``."""


def open_outputs(place: str) -> Outputs:
    """Return the outputs at a folder or address. Raises UsageError for an unwritable address."""
    if is_address(place := local_path(place)):
        from detector.batch.bucket import BucketOutputs

        return BucketOutputs(place)
    return LocalOutputs(place)


def open_home(place: str) -> str:
    """Return the local folder of the job's own files. If ``place`` is an address, update this
    folder from the store. Raises OutputError; UsageError for an address that cannot be written."""
    if is_address(place := local_path(place)):
        from detector.batch.bucket import BucketOutputs

        return BucketOutputs(place).fetch_home()
    return os.path.abspath(place)


class LocalOutputs:
    def __init__(self, place: str) -> None:
        self.place = self.home = os.path.abspath(place)
        self._files = os.path.join(self.place, FILES)

    def folder(self, name: str) -> Path:
        return Path(self._files, name)

    def begin(self, name: str) -> Path:
        scratch = self._new_place(name)
        with output_errors(scratch):
            self.discard(name)
            self._refuse_links(name)
            scratch.mkdir(parents=True)
        return scratch

    def commit(self, name: str, scratch: Path, record: ItemRecord) -> None:
        target = self.folder(name)
        with output_errors(target):
            # Do not sync the folder ``scratch``. If a power loss removes the marker from it, the
            # item is only redone.
            with open(scratch / MARKER, "wb", buffering=0) as file:
                file.write(to_json(record, indent=None).encode())
                os.fsync(file.fileno())
            self._refuse_links(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(target):
                self._set_aside(name, target)
            os.rename(scratch, target)
            sync_folder(target.parent)
        self.discard(name)

    def _link_above(self, name: str) -> str | None:
        folders = [self._files, *(f"{self._files}/{above}" for above in names_above(name))]
        return next((folder for folder in folders if os.path.islink(folder)), None)

    def _refuse_links(self, name: str) -> None:
        if (link := self._link_above(name)) is not None:
            raise OutputError(
                f"{link}: is a link, but results must not leave {self.place}; remove it: rm {link}"
            )

    def _set_aside(self, name: str, target: Path) -> None:
        """Rename earlier results to a hidden name: a folder cannot be replaced atomically."""
        aside = self._new_place(name)
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.rename(target, aside)

    def _new_place(self, name: str) -> Path:
        """Return a path as deep in OUT as the results will be: relative links must stay valid."""
        return Path(self._scratch(name), *["x"] * name.count("/"), secrets.token_hex(4))

    def _scratch(self, name: str) -> str:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return os.path.join(self.place, f"{SCRATCH}{digest[:16]}")

    def discard(self, name: str) -> None:
        remove_tree(self._scratch(name))

    def discard_all(self) -> None:
        """Remove unfinished results of killed jobs. No other job may be running here."""
        for path in Path(self.place).glob(f"{SCRATCH}*"):
            remove_tree(path)

    def has_marker(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._files, name, MARKER))

    def read_marker(self, name: str) -> ItemRecord | None:
        return self._read(name, ItemRecord)

    def _read(self, name: str, kind: type[Marker]) -> Marker | None:
        try:
            data = _read_plain(os.path.join(self._files, name, MARKER), MARKER_BYTES)
            found = decode(data, kind, f"{name}/{MARKER}")
        except (OSError, UsageError):
            return None
        return found if found.schema == SCHEMA else None

    def is_done(self, name: str, key: str) -> bool:
        seal = self._read(name, Seal)
        if seal is None or (seal.name, seal.key) != (name, key):
            return False
        return self.is_whole(seal)

    def is_whole(self, record: ItemRecord | Seal) -> bool:
        if ROWS not in record.outputs.values() or self._link_above(record.name) is not None:
            return False
        folder = os.path.join(self._files, record.name)
        if os.path.islink(folder):
            return False
        for kind, relative in record.outputs.items():
            if leads_out(relative):
                return False
            try:
                about = os.lstat(os.path.join(folder, relative))
            except (OSError, ValueError):
                return False
            is_file = stat.S_ISREG(about.st_mode)
            if not is_file and not stat.S_ISDIR(about.st_mode):
                return False
            if is_file and record.sizes.get(kind, about.st_size) != about.st_size:
                return False
        return True

    def remove(self, name: str) -> None:
        target = self.folder(name)
        with output_errors(target):
            self._refuse_links(name)
            if os.path.lexists(target):
                self._set_aside(name, target)
        self.discard(name)
        for parent in target.parents:
            if parent == Path(self._files):
                break
            with suppress(OSError):
                parent.rmdir()  # fails unless it is empty

    def gather(self, name: str, rows: Path) -> None:
        dataset.gather(self.place, name, rows)

    def gather_missing(self, names: Iterable[str], stopped: Callable[[], bool]) -> None:
        for name in dataset.missing(self.place, names):
            if stopped():
                return
            if (rows := self.folder(name) / ROWS).exists():
                dataset.gather(self.place, name, rows)

    def ungather(self, name: str) -> None:
        dataset.remove(self.place, name)

    def publish(self, settings: JobSettings, *, first: bool) -> JobSettings:
        return settings  # ``home`` is the output folder, so the settings are there already

    def keep_home(self, shard: Shard, *, last: bool = False) -> None:
        """Do nothing, because ``home`` is the output folder."""


def _read_plain(path: str, most: int) -> bytes:
    """Read a regular file of at most ``most`` bytes. Raises OSError for links and special files."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            raise OSError(errno.EINVAL, "no marker")
        return os.read(file, most)
    finally:
        os.close(file)


def make_output_folder(place: str) -> None:
    if is_address(place := local_path(place)):
        return  # ``open_home`` has checked the store
    try:
        os.makedirs(os.path.join(place, FILES), exist_ok=True)
    except OSError as error:
        why = "a file is in the way" if isinstance(error, FileExistsError) else error.strerror
        raise OutputError(f"{place}: cannot create the output folder: {why}; {CURE}") from error
    if not has_permission(place):
        raise OutputError(f"{place}: no permission to write there; {CURE}")
