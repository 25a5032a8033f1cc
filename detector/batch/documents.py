"""What a job of ``batch`` leaves and prints: markers, settings, progress, the result of all."""

from __future__ import annotations

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
    """Where the seconds of some items went. ``infer_s``: in which at least one inference ran.
    ``waits``: what threads waited for -> seconds."""

    infer_s: Duration = 0.0
    cpu_s: Duration = 0.0  # of the whole process
    stages: dict[str, StageSeconds] = field(default_factory=dict)
    waits: dict[str, Duration] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRecord:
    """done.json: the marker of an item. Where it stands, the item's results are whole.

    ``key``: a digest of ``path``, ``version`` and ``settings``. ``version``: size and time of
    change of the source. ``settings``: a digest of all options that decide what is detected and
    written, and of the model. ``outputs``: kind -> name in the item's folder. ``exit``: as of a
    single run; 7 where a part of the source was lost. ``parts``: of which the results were joined,
    0 for one run; ``seconds`` and ``ledger`` are then those of all parts together. ``sizes``: kind
    -> bytes, of the outputs that are files.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What of a marker says whether its item is done: reading no more is four times as fast."""

    schema: int
    name: str
    key: str
    outputs: dict[str, str]
    sizes: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """job.json: what every worker obeys, resolved once.

    ``flags`` and ``config_file``: as they were typed. ``asked``: the configuration that they make.
    ``config``: the same without any ``auto``. ``digest``: see ``ItemRecord.settings``. ``canvas``:
    "source" where each item's network input has the shape of its source, at about the area of
    ``model_input``; None where all items have ``model_input``.
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
    """An item that was set aside. ``tries``: 0 where it was refused before any."""

    source: str
    error: str
    tries: Count
    exit_code: Count = 1
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """One worker, now. ``item``: its name, and which part of it the worker has, if not all.
    ``done``: items, and steps of those that are done in parts. ``busy_share``: of its life, the
    share in which it had an item."""

    worker: Count
    state: str  # "loading", "idle", "working", "gone"
    item: str | None = None
    frames: Count = 0  # of that item, so far
    done: Count = 0
    fps: Amount | None = None  # of all its frames, over the seconds in which it had an item
    busy_share: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """One line of --progress, and what --status shows of a job that runs.

    ``fps``: end to end, over the last minute. ``eta_s``: by the bytes that are left; None where
    nothing tells yet. ``core_hours``: cores that the job holds, times its hours; ``cpu_hours``:
    what the items used of them. ``parts``: of the items that are being done in parts now, and
    ``parts_done`` of these.
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
    """``done``: in this run of the job; ``skipped``: by an earlier one. ``retried``: tried again
    after a worker was lost. ``damaged``: of those done, where a part of the source was lost.
    ``left``: where the job ended before its last item."""

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
    """One place in the pool, over the whole run: load + busy + idle = its life. ``starts``:
    processes that it took. ``items``: whole ones, and steps of those that are done in parts."""

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
class Forecast:
    """The items of this run replayed on so many workers, each with as many cores as one has now."""

    workers: Count
    seconds: Duration
    speedup: Amount  # against the workers that there were
    read_mb_s: Amount  # that the storage must give


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A run of the job, looked at as a whole.

    ``ledger``: of all items. ``between_s``: seconds of workers on an item outside of its run
    (placing results, messages). ``stragglers``: the last items, or parts of items, that ran while
    other workers had nothing left. ``forecasts``: what more workers would bring; ``limit``: where
    it stops growing, in words. ``cpu_share``: of the cores that workers hold, what items used.
    """

    ledger: Ledger
    workers: list[WorkerReport]
    slowest: list[SlowItem]
    stragglers: list[SlowItem]
    straggling_s: Duration
    between_s: Duration
    cpu_share: Amount | None
    forecasts: list[Forecast]
    limit: str
    core_hours: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What ``batch --json`` prints at the end, and with --status."""

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
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedItems:
    """What a job would do: counts of items. ``changed``: done before from another version of the
    source, or with other settings. ``vanished``: results whose source is gone."""

    new: Count = 0
    changed: Count = 0
    again: Count = 0  # failed before
    skipped: Count = 0
    refused: Count = 0
    vanished: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What ``batch --dry-run --json`` prints."""

    schema: int = SCHEMA
    output: str
    planned: PlannedItems
    bytes: Count
    items: list[str]
    refused: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
