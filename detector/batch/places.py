"""Where results go: the folders of an output, and how an item's results come to stand there whole.

    OUT/files/NAME/            an item's outputs, and done.json, its marker
    OUT/detections/source=.../ its rows in the dataset (dataset.py)
    OUT/manifest.sqlite        which items there are; of a shard: manifest-2-of-4.sqlite
    OUT/job.json               what every worker obeys (settings.py)
    OUT/settings.yaml          the same for --config of a single run
    OUT/failures.jsonl         what was set aside; of a shard: failures-2-of-4.jsonl

An item is written into a hidden folder of OUT and renamed when it is whole, marker and all. So a
marker means whole results, whatever was killed when. The contract is ``Outputs``; bucket.py places
results in an object store. Where the parts of long items lie meanwhile is said in pieces.py.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from detector.batch import dataset
from detector.batch.documents import ItemRecord, JobSettings
from detector.batch.layout import CURE, FILES, MARKER, MARKER_BYTES, ROWS, SCRATCH
from detector.batch.listing import Shard
from detector.core.errors import OutputError, UsageError
from detector.core.errors.writing import has_permission, sync_folder
from detector.core.session.codec import from_json, to_json
from detector.core.sources._addresses import is_address, local_path


class Outputs(Protocol):
    """Places the results of items. Workers have one each; it holds nothing open."""

    place: str  # for ``open_outputs``, in another process
    home: str  # the folder of this machine for the job's own files: manifest, settings, locks

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

    # Its rows in the dataset. Of these, nothing needs pyarrow but ``gather`` and what calls it.

    def gather(self, name: str, rows: Path) -> None:
        """Writes the partition of an item from its rows, in place of an earlier one."""

    def gather_missing(self, names: Iterable[str], stopped: Callable[[], bool]) -> None:
        """The same for those of these items that are done and have none."""

    def ungather(self, name: str) -> None:
        """Removes the partition of an item, where there is one."""

    # The job's own files.

    def publish(self, settings: JobSettings, *, first: bool) -> JobSettings:
        """The settings stand in ``home`` and come to stand in the place. Returns those in force:
        of jobs that begin at one moment, whose settings come first decides."""

    def keep_home(self, shard: Shard, *, last: bool = False) -> None:
        """Brings copies of the job's own files to the place, if their time has come. ``last``: it
        has, for the job ends."""


def open_outputs(place: str) -> Outputs:
    """Raises UsageError for an address that cannot be written."""
    if is_address(place := local_path(place)):
        from detector.batch.bucket import BucketOutputs

        return BucketOutputs(place)
    return LocalOutputs(place)


def open_home(place: str) -> str:
    """The folder of the job's own files, with what other machines brought to the place since.

    Nothing is made, but for a place in a store. Raises OutputError, and UsageError as above.
    """
    if is_address(place := local_path(place)):
        from detector.batch.bucket import BucketOutputs

        return BucketOutputs(place).fetch_home()
    return os.path.abspath(place)


class LocalOutputs:
    """A folder of this system, which may be a network file system."""

    def __init__(self, place: str) -> None:
        self.place = self.home = os.path.abspath(place)
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
        return settings  # they lie where they belong

    def keep_home(self, shard: Shard, *, last: bool = False) -> None:
        """Nothing to do: home is the place."""


@contextmanager
def _output_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{target}: cannot be written: {error.strerror}; free space, or {CURE}"
        ) from error


def make_output_folder(place: str) -> None:
    """Raises OutputError where it cannot be made or written."""
    if is_address(place := local_path(place)):
        return  # ``open_home`` has asked
    try:
        os.makedirs(os.path.join(place, FILES), exist_ok=True)
    except OSError as error:
        why = "a file is in the way" if isinstance(error, FileExistsError) else error.strerror
        raise OutputError(f"{place}: the output folder cannot be made: {why}; {CURE}") from error
    if not has_permission(place):
        raise OutputError(f"{place}: no permission to write there; {CURE}")
