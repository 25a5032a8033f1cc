"""Plan a job: compare the listed items with manifest and markers, and find vanished sources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from detector.batch import pieces
from detector.batch.documents import ItemRecord, PlannedItems
from detector.batch.listing import Item, Listing
from detector.batch.manifest import DONE, FAILED, Manifest, ManifestRow, manifests
from detector.batch.places import Outputs
from detector.batch.settings import key_of
from detector.core.errors import UsageError


@dataclass(slots=True)
class Plan:
    """The plan of a job. ``todo``: (item, key). ``adopted``: items that are done according to their
    marker, but not according to the manifest. ``vanished``: done items whose source is gone;
    ``stale``: unfinished items whose source is gone."""

    todo: list[tuple[Item, str]] = field(default_factory=list)
    adopted: list[tuple[Item, ItemRecord]] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    new: int = 0
    changed: int = 0
    again: int = 0
    skipped: int = 0
    refused: int = 0

    def counts(self) -> PlannedItems:
        return PlannedItems(
            new=self.new,
            changed=self.changed,
            again=self.again,
            skipped=self.skipped,
            refused=self.refused,
            vanished=len(self.vanished),
        )


def make_plan(listing: Listing, rows: Iterable[ManifestRow], outputs: Outputs, digest: str) -> Plan:
    plan = Plan(refused=len(listing.refused))
    known = {row.name: (row.key, row.state) for row in rows}
    for item in listing.items:
        key = key_of(item.path, item.version, digest)
        was, state = known.pop(item.name, ("", ""))
        if state == DONE and was == key and outputs.is_done(item.name, key):
            plan.skipped += 1
            continue
        if state != FAILED and (record := _marker(outputs, item.name)) is not None:
            if (record.name, record.key) == (item.name, key) and outputs.is_whole(record):
                plan.skipped += 1
                plan.adopted.append((item, record))
                continue
            plan.changed += 1
        elif state == FAILED:
            plan.again += 1
        else:
            plan.new += 1
        plan.todo.append((item, key))
    for name, (_, state) in known.items():
        (plan.vanished if state == DONE else plan.stale).append(name)
    return plan


def _marker(outputs: Outputs, name: str) -> ItemRecord | None:
    return outputs.read_marker(name) if outputs.has_marker(name) else None


def prune(listing: Listing, outputs: Outputs) -> int:
    """Remove all shards' results for sources that are no longer listed. Return the number of items
    removed. Raises UsageError if a SOURCE matches nothing: its disk may be unmounted."""
    if listing.silent:
        raise UsageError(
            f"{', '.join(listing.silent)}: matches nothing now, so nothing is pruned; is a disk "
            "unmounted? If that SOURCE is gone for good, omit it"
        )
    listed = {item.name for item in listing.items}
    removed: set[str] = set()
    for path in manifests(outputs.home):
        manifest = Manifest.open(path)
        try:
            gone = [row.name for row in manifest.rows() if row.name not in listed]
            for name in gone:
                outputs.ungather(name)
                pieces.drop(outputs.place, name)
                outputs.remove(name)
            manifest.forget(gone)
        finally:
            manifest.close()
        removed.update(gone)
    return len(removed)
