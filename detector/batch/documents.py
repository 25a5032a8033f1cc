"""The documents that a job of ``batch`` writes and prints: markers, settings, progress, result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from detector.core.session.codec import SCHEMA
from detector.core.session.document import Amount, Count, Duration, Exit

Canvas = Literal["source"]
OF_SOURCE: Canvas = "source"  # ``JobSettings.canvas``


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """All calls of one stage."""

    calls: Count = 0
    busy_s: Duration = 0.0
    cpu_s: Duration = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The time that items took, by cause. ``infer_s``: seconds with at least one inference running.
    ``waits``: what threads waited for -> seconds."""

    infer_s: Duration = 0.0
    cpu_s: Duration = 0.0  # CPU time of the whole process
    stages: dict[str, StageSeconds] = field(default_factory=dict)
    waits: dict[str, Duration] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRecord:
    """done.json: the marker of an item. If it exists, the item's results are complete.

    ``key``: digest of ``path``, ``version`` and ``settings``. ``version``: size and modification
    time of the source. ``settings``: digest of the model and of all options that affect detections
    or outputs. ``outputs``: kind -> name in the item's folder. ``exit``: the exit code that a
    run on this source alone would have; 7 if a part of the source was lost. ``parts``: number of
    joined parts, 0 if the item was not split; ``seconds`` and ``ledger`` are sums over all parts.
    ``sizes``: kind -> bytes, for outputs that are files. ``classes``: name -> number of detections.
    """

    schema: int = SCHEMA
    name: str
    path: str
    size: Count
    version: str
    settings: str
    key: str
    frames: Count
    detections: Count
    seconds: Duration  # from opening the source to closing the last output
    exit: Exit
    outputs: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    detect_video: str = ""  # version of the program
    finished: Duration = 0.0  # Unix time, seconds
    parts: Count = 0
    sizes: dict[str, Count] = field(default_factory=dict)
    classes: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The fields of a marker that show if it is done. Parsing all fields takes 4 times as long."""

    schema: int
    name: str
    key: str
    outputs: dict[str, str]
    sizes: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """job.json: the settings of every worker, resolved once.

    ``flags`` and ``config_file``: what the user gave. ``asked``: the resulting configuration.
    ``config``: the same with every ``auto`` resolved. ``digest``: see ``ItemRecord.settings``.
    ``canvas``: "source" if each item's network input has the aspect ratio of its source, and about
    as many pixels as ``model_input``; None if all items use ``model_input``.
    """

    schema: int = SCHEMA
    sources: list[str]
    flags: dict[str, Any]
    config_file: str | None
    asked: dict[str, dict[str, Any]]
    config: dict[str, dict[str, Any]]
    model: str
    model_sha256: str
    model_input: tuple[Count, Count]  # height, width
    class_names: list[str]
    engine_reason: str | None
    digest: str
    notes: list[str] = field(default_factory=list)
    canvas: Canvas | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An item that failed. ``tries``: 0 if the item was refused before its first try."""

    source: str
    error: str
    tries: Count
    exit_code: Count = 1
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The state of one worker. ``item``: name of the present item, and its part if it is split.
    ``done``: how many items, or steps of split items, it has finished. ``busy_share``: share of its
    lifetime that it spent on items."""

    worker: Count
    state: str  # "loading", "idle", "working", "gone"
    item: str | None = None
    frames: Count = 0  # frames of that item, so far
    done: Count = 0
    fps: Amount | None = None  # frames of all its items, per second spent on them
    busy_share: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """One line of --progress; also the progress that --status shows.

    ``fps``: end to end, over the last minute. ``eta_s``: estimated from the remaining bytes; None
    while it is unknown. ``core_hours``: duration of the job in hours, times its number of cores;
    ``cpu_hours``: CPU time that the items used. ``parts``: number of parts of all items that are
    split at present; ``parts_done``: how many of them are done.
    """

    schema: int = SCHEMA
    time: Duration  # Unix time, seconds
    seconds: Duration
    total: Count
    done: Count
    skipped: Count
    failed: Count
    retried: Count
    left: Count
    frames: Count
    fps: Amount | None
    eta_s: Duration | None
    core_hours: Amount
    cpu_hours: Amount
    workers: list[WorkerState]
    parts: Count = 0
    parts_done: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCounts:
    """``done``: done in this run of the job; ``skipped``: done in an earlier run. ``retried``:
    tried again after a worker was lost. ``damaged``: done, but a part of the source was lost.
    ``left``: not reached, because the job ended early."""

    done: Count = 0
    skipped: Count = 0
    failed: Count = 0
    retried: Count = 0
    damaged: Count = 0
    left: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowItem:
    name: str
    seconds: Duration
    frames: Count
    fps: Amount | None
    size: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A place in the pool, over a whole run. Its lifetime is ``load_s`` + ``busy_s`` + ``idle_s``.
    ``starts``: how many processes it had. ``items``: how many items and steps they did."""

    worker: Count
    starts: Count
    items: Count
    frames: Count
    load_s: Duration
    busy_s: Duration
    idle_s: Duration
    cores: Amount

    @property
    def utilisation(self) -> float | None:
        life = self.load_s + self.busy_s + self.idle_s
        return self.busy_s / life if life > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A report on a whole run of the job.

    ``ledger``: sum over all items. ``between_s``: seconds in which workers had an item but did
    not process it: they put results in place or exchanged messages. ``cpu_share``: the share of the
    workers' cores that was in use."""

    ledger: Ledger
    workers: list[WorkerReport]
    slowest: list[SlowItem]
    between_s: Duration
    cpu_share: Amount | None
    core_hours: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The findings of all runs. ``classes``: name -> number of detections. ``filled``: number of
    items with detections; ``empty``: items without detections; ``damaged``: items that lost a part
    of the source; ``unknown``: number of items from a version that did not count detections."""

    classes: dict[str, Count] = field(default_factory=dict)
    filled: Count = 0
    empty: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    unknown: Count = 0

    @classmethod
    def of(cls, items: Mapping[str, tuple[bool, dict[str, int] | None]]) -> Found:
        """Sum up the result of ``Manifest.found``: item -> (is damaged, detections by class)."""
        known = {name: classes for name, (_, classes) in items.items() if classes is not None}
        empty = sorted(name for name in known if not known[name])
        return cls(
            classes=sum(map(Counter, known.values()), Counter()),
            filled=len(known) - len(empty),
            empty=empty,
            damaged=sorted(name for name, (damaged, _) in items.items() if damaged),
            unknown=len(items) - len(known),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The document of ``batch --json``, at the end and with --status."""

    schema: int = SCHEMA
    output: str
    items: ItemCounts
    failures: list[Failure]
    seconds: Duration
    frames: Count
    fps: Amount | None
    workers: Count
    exit: Exit
    running: bool = False
    shards: list[str] = field(default_factory=list)
    settings: JobSettings | None = None
    progress: BatchProgress | None = None
    report: BatchReport | None = None
    found: Found = field(default_factory=Found)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedItems:
    """The plan of a job: numbers of items. ``changed``: done earlier, but the source or the
    settings have changed since. ``vanished``: results whose source no longer exists."""

    new: Count = 0
    changed: Count = 0
    again: Count = 0  # failed before
    skipped: Count = 0
    refused: Count = 0
    vanished: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The document of ``batch --dry-run --json``."""

    schema: int = SCHEMA
    output: str
    planned: PlannedItems
    bytes: Count
    items: list[str]
    refused: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
