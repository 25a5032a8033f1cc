"""The long items of a job: which of them are split, and the next tasks of each.

A long file must not keep one worker busy while the others are idle. Only file sizes are known
before anything is opened. So an item is inspected if it is larger than a quarter of one worker's
share of all bytes. A worker then reads the packets of the file. It either divides the file
(``split.py``), or goes on to process it in a single run.

    plan ──► part, part, part ──► join          each is a task, for any worker
      └──► whole       └──► whole  └──► whole   if no split is possible, a part fails, or parts
                                                do not fit together
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from detector.batch import pieces
from detector.batch.documents import ItemRecord
from detector.batch.item import Piece, Task
from detector.batch.listing import Item
from detector.batch.pieces import LEAST_S, folder_name
from detector.core.errors import UsageError
from detector.core.sources._addresses import is_address

LEAST_BYTES = 8 << 20  # smaller files stay whole: they rarely last for two parts of LEAST_S seconds
MINUTE_BYTES = 1 << 20  # video rarely has fewer bytes per minute; this bounds the number of parts
PER_WORKER = 4  # parts per worker, so that all workers end at about the same time
MOST_PARTS = 1 << 20  # in effect no limit


@dataclass(frozen=True, slots=True)
class Split:
    """The option --split. ``least_s``: minimum length of a part in seconds. ``every``: split every
    file that is long enough. ``off``: split none."""

    least_s: float = LEAST_S
    every: bool = False
    off: bool = False


AUTO = Split()


def parse_split(text: str | None) -> Split:
    if text is None or text == "auto":
        return AUTO
    if text == "off":
        return Split(off=True)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds < 1e9:
        raise UsageError(f"--split {text}: give auto, off, or the seconds per part (0.1 or more)")
    return Split(least_s=seconds, every=True)


def count_tasks(items: Sequence[Item], split: Split) -> int:
    """Return how many tasks these files need at most. More workers than that would be idle."""
    if split.off:
        return len(items)
    if split.every:
        return MOST_PARTS
    return sum(
        1 if item.size < LEAST_BYTES else 2 + item.size // MINUTE_BYTES  # plan, parts and join
        for item in items
    )


def choose(items: Sequence[Item], split: Split, workers: int) -> dict[str, int]:
    """Return the names of items to inspect, and how many parts each should have."""
    if split.off or workers < 2:
        return {}
    if split.every:
        return {item.name: MOST_PARTS for item in items}
    pieces_in_all = PER_WORKER * workers
    total = sum(item.size for item in items)
    # Integer arithmetic gives the same result on every machine.
    return {
        item.name: -(-item.size * pieces_in_all // total)
        for item in items
        if item.size >= LEAST_BYTES and item.size * pieces_in_all > total
    }


@dataclass(slots=True)
class Divided:
    """An item that is split. ``parts``: how many parts it has; ``left``: numbers of the
    unfinished parts. ``size``: bytes of the item; ``booked``: bytes that are counted as done."""

    size: int
    parts: int
    left: set[int]
    booked: int = 0
    frames: int = 0


@dataclass(slots=True)
class LongItems:
    """The long items of a run. ``chosen``: name -> number of parts. ``kept``: items that an earlier
    run divided; this run continues them."""

    split: Split
    chosen: Mapping[str, int]
    kept: Collection[str]
    _divided: dict[str, Divided] = field(default_factory=dict)

    @classmethod
    def begin(
        cls,
        place: str,
        todo: Sequence[tuple[Item, str]],
        split: Split,
        workers: int,
        ours: Collection[str] | None = None,
    ) -> LongItems:
        """Choose the items to split, and remove parts of earlier runs that cannot be used again.
        ``todo``: items with their keys. ``ours``: items whose parts may be removed; None: all."""
        names = {folder_name(item.name, key): item.name for item, key in todo}
        there = pieces.sweep(place, () if split.off else names, ours)
        items = [item for item, _ in todo]
        return cls(split, choose(items, split, workers), {names[folder] for folder in there})

    def first(self, task: Task) -> Task:
        """Return the task that plans the item's parts, or ``task`` itself if it stays whole."""
        is_inspected = task.name in self.chosen or task.name in self.kept
        if not is_inspected or is_address(task.path):
            return task
        most, least_s = self.chosen.get(task.name, 0), self.split.least_s
        return replace(task, piece=Piece(do="plan", most=most, least_s=least_s))

    def divide(self, task: Task, record: ItemRecord) -> list[Task]:
        parts = record.parts
        self._divided[task.name] = Divided(record.size, parts, set(range(parts)))
        return [
            replace(task, tries=1, piece=Piece(do="part", number=number, of=parts))
            for number in range(parts)
        ]

    def finish_part(self, task: Task, record: ItemRecord) -> tuple[int, list[Task]]:
        """Return the bytes to count for the part (0 if an earlier run did it), and the task that
        joins the parts if all are done."""
        assert task.piece is not None
        item = self._divided[task.name]
        item.left.discard(task.piece.number)
        item.frames += record.frames
        done_bytes = item.size // item.parts if record.frames else 0
        item.booked += done_bytes
        join = replace(task, tries=1, piece=Piece(do="join", of=item.parts))
        return done_bytes, [] if item.left else [join]

    def finish_joined(self, task: Task) -> int:
        """Forget a joined item. Return how many of its bytes are not counted yet."""
        item = self._divided.pop(task.name)
        return item.size - item.booked

    def give_up(self, name: str) -> Divided | None:
        """Forget an item that failed or is processed whole now. Return None if it was not split."""
        return self._divided.pop(name, None)

    def is_given_up(self, task: Task) -> bool:
        return task.is_part and task.name not in self._divided

    def counts(self) -> tuple[int, int]:
        """Return how many parts the divided items have, and how many of them are done."""
        parts = sum(item.parts for item in self._divided.values())
        return parts, parts - sum(len(item.left) for item in self._divided.values())


def do_whole(task: Task, why: str) -> Task:
    return replace(task, tries=1, piece=Piece(do="whole", why=why))
