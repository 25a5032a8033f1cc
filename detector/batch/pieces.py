"""The parts of a long item on disk, while a job processes it.

    OUT/.detect-video-parts-NAME-KEY/   NAME: digest of the item's name; KEY: start of its key
        plan.json                       where the file is cut (split.py)
        part-3/                         a finished part (part.py), and record.json, its marker
        part-3.1a2b3c4d/                an unfinished part

A part is renamed when it is complete and on the disk. So a killed job loses only unfinished parts,
and --resume continues after the finished ones. The folder is removed when the item's results are in
place. It is in OUT, because all workers must see it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from detector.batch.documents import ItemRecord
from detector.batch.layout import remove_tree
from detector.core.errors import UsageError
from detector.core.errors.writing import sync_folder
from detector.core.session.codec import from_json, read_file, to_json
from detector.core.sources._addresses import is_address

PARTS = ".detect-video-parts-"
PLAN, RECORD = "plan.json", "record.json"
LEAST_S = 60.0  # shorter parts cost too much: each reopens the file and decodes some frames twice


def folder_name(name: str, key: str) -> str:
    """Return the folder's name. ``key`` (``settings.key_of``) changes with source and settings."""
    return f"{_all_of(name)}{key[:16]}"


def _all_of(name: str) -> str:
    """Return the prefix that all folders of an item share, whatever their key."""
    return f"{PARTS}{hashlib.sha256(name.encode()).hexdigest()[:16]}-"


def folder_of(place: str, name: str, key: str) -> Path | None:
    return None if is_address(place) else Path(place, folder_name(name, key))


def find_folders(place: str) -> set[str]:
    if is_address(place):
        return set()
    return {entry.name for entry in os.scandir(place) if entry.name.startswith(PARTS)}


def drop(place: str, name: str) -> None:
    for found in find_folders(place):
        if found.startswith(_all_of(name)):
            remove_tree(os.path.join(place, found))


def sweep(place: str, keep: Collection[str], names: Collection[str] | None) -> set[str]:
    """Remove folders of parts that are not in ``keep``. Return the folders of ``keep`` that exist.
    ``names``: the items, such as a shard's, whose parts may be removed; None: all items."""
    found = find_folders(place)
    ours = None if names is None or not found else tuple(map(_all_of, names))
    kept = {name for name in found if name in keep and not os.path.islink(f"{place}/{name}")}
    for folder in found - kept:
        if folder in keep or ours is None or folder.startswith(ours):
            remove_tree(os.path.join(place, folder))
    return kept


def part_folder(folder: Path, number: int) -> Path:
    return folder / f"part-{number}"


def read_record(folder: Path, number: int) -> ItemRecord | None:
    path = part_folder(folder, number) / RECORD
    try:
        return from_json(read_file(path), ItemRecord, path)
    except UsageError:
        return None


def begin_part(folder: Path, number: int) -> Path:
    """Return a new path for the folder of a part. Remove the folders of earlier tries."""
    for path in folder.glob(f"part-{number}.*"):
        shutil.rmtree(path, ignore_errors=True)
    return folder / f"part-{number}.{secrets.token_hex(4)}"


def finish_part(folder: Path, number: int, under_way: Path, record: ItemRecord) -> None:
    (under_way / RECORD).write_text(to_json(record), encoding="ascii")
    for path in under_way.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    try:
        os.rename(under_way, part_folder(folder, number))
    except OSError:
        # A worker that was given up as lost has finished this part. Its result is equally good.
        if read_record(folder, number) is None:
            raise
        shutil.rmtree(under_way, ignore_errors=True)
    sync_folder(folder)


def remove_under_way(folder: Path) -> None:
    for path in folder.glob("part-*.*"):
        shutil.rmtree(path, ignore_errors=True)
