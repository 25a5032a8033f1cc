"""The facts that each pass of ``profile`` leaves in a session, and the files passes/NAME.json.

Each type below is the contract between three rooms: a pass measures it, this file writes and reads
it, analysis and report use its fields. A field is a key of the JSON document of the same name. A
default means that sessions of earlier versions lack the key. Times end in ``_ms`` or ``_s``,
shares are fractions of 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UNSET, Struct

from detector.core.errors import UsageError
from detector.core.session.codec import (
    from_builtins,
    json_schema,
    parse_json,
    read_file,
    to_builtins,
)
from detector.core.session.document import Amount, Count, Duration, SessionDocument, Size
from detector.core.session.measured import Interval as Interval
from detector.lab.session.network import DeviceFacts, LayersFacts, RooflineFacts, TorchFacts

Facts = TypeVar("Facts")

# Fields that must equal the run's, unless a pass declares them varied. Others are reported.
PINNED = ("engine", "precision", "threads", "concurrency", "batch", "model_input")


# What every pass says: what ran the network while it measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What ran the network, and how: figures of two of these are figures of two things.

    ``threads``: of one request. ``model_input``: height, width. None: this one does not tell, as a
    network that runs without a loop and a source.
    """

    engine: str
    precision: str
    threads: Count
    concurrency: Size
    batch: Size
    model_input: tuple[Size, Size]
    sync: bool | None = None
    decoder: str | None = None
    pixels: str | None = None

    @classmethod
    def of(cls, document: SessionDocument) -> Execution:
        video = document.each[0].video
        return cls(
            engine=document.engine,
            precision=document.precision,
            threads=document.engine_threads,
            concurrency=document.concurrency,
            batch=document.batch,
            model_input=document.model_input,
            sync=document.sync,
            decoder=None if video.decoder is UNSET else video.decoder,
            pixels=None if video.pixels is UNSET else video.pixels,
        )

    def differs_in(self, other: Execution) -> list[str]:
        """Return the fields that both tell, and tell differently."""
        mine_and_theirs = {
            one.name: (getattr(self, one.name), getattr(other, one.name))
            for one in fields(Execution)
        }
        return [
            name
            for name, (mine, theirs) in mine_and_theirs.items()
            if mine != theirs and mine is not None and theirs is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The execution that a pass measured. ``execution``: the run's, to compare with the pass's.
    ``measured``: what ran the network in the pass, each once; empty if nothing ran again.
    ``on_purpose``: fields that the pass changes. ``differs_in``: fields that differed in the pass,
    on purpose or as ``text`` says. ``text``: "openvino int8, as the run"."""

    execution: Execution
    measured: Sequence[Execution] = ()
    on_purpose: Sequence[str] = ()
    differs_in: Sequence[str] = ()
    text: str


# loop, critical_path, frames, what_if: the loop as it ran, and as it could run


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """The cost of the instruments. ``off_ms``, ``on_ms``: milliseconds a frame of each round
    without and with them. ``instruments``: their share of a frame's time. ``warning``: set if it is
    too much."""

    off_ms: Sequence[float]
    on_ms: Sequence[float]
    instruments: Interval
    warning: str | None
    slowdown: float


@dataclass(frozen=True, slots=True)
class PathStage:
    """A stage's part of the critical path. ``share`` covers its own work and its waits.
    ``wait_causes``: cause -> seconds, longest first."""

    name: str
    share: Amount
    self_s: Duration
    wait_s: Duration
    calls: Count
    wait_causes: Mapping[str, Duration]


@dataclass(frozen=True, slots=True)
class CriticalPathFacts:
    """The steady state took ``wall_s`` for ``frames`` written frames; the shares of ``stages``
    add up to 1. Start-up and tear-down come before and after."""

    wall_s: Duration
    startup_s: Duration
    teardown_s: Duration
    frames: Count
    stages: Sequence[PathStage]


@dataclass(frozen=True, slots=True)
class SlowFrame:
    """One of the slowest frames. ``stage``: the one that took the longest part of it. ``file``: its
    picture, relative to the session's folder."""

    frame: Count
    ms: Duration
    stage: str
    stage_ms: Duration
    file: str


@dataclass(frozen=True, slots=True)
class FramesFacts:
    """The slowest frames, slowest first."""

    rows: Sequence[SlowFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, compared with the unchanged run. ``stage``: the one that a stand-in replaced;
    None if the loop changed. ``how``: its replacement. Over the rounds: ``fps_ratio`` and
    ``frame_ratio`` to the unchanged runs just before and just after, above and below 1 if the
    change helps; ``fps`` and ``frame_ms`` are these times the median of all unchanged runs."""

    change: str
    stage: str | None = None
    how: str
    fps: Interval
    frame_ms: Interval
    fps_ratio: Interval
    frame_ratio: Interval

    @property
    def helps(self) -> bool:
        """Return whether it was faster in every round. Else its gain may be noise."""
        return self.fps_ratio.low > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfFacts:
    """Changes, the largest median gain first. ``frames``: of each run, the source's first;
    ``rounds``: of each change. ``fps``, ``frame_ms``: of the unchanged run, over all of its turns.
    ``not_measured``: change -> why. ``doubts``: reasons not to trust the figures."""

    frames: Size
    rounds: Size
    fps: Interval
    frame_ms: Interval
    changes: Sequence[Change]
    not_measured: Mapping[str, str]
    doubts: Sequence[str]

    @property
    def gains(self) -> list[Change]:
        return [row for row in self.changes if row.helps]


# memory, energy, python, counters: what the run uses


@dataclass(frozen=True, slots=True)
class MemorySample:
    t_s: float
    rss_mb: Amount


class GpuMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPU's memory, at its highest while the run was on; without ``available`` there is the
    ``reason`` alone. ``used_mb``: by all processes, ``process_mb``: by this one, where NVML tells;
    ``total_mb``: of the GPU."""

    available: bool
    reason: str | None = None
    used_mb: float | None = None
    process_mb: float | None = None
    total_mb: float | None = None
    torch_peak_allocated_mb: float | None = None
    torch_peak_reserved_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Resident memory. ``slope_mb_per_1000_frames``: its growth, None for the ``slope_reason``.
    ``parts_mb``: what each part alone adds to the peak of a run of at most 100 frames."""

    slope_mb_per_1000_frames: float | None
    slope_reason: str | None
    start_mb: Amount
    peak_mb: Amount
    parts_mb: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[MemorySample]
    gpu: GpuMemory | None = None
    slowdown: float


class EnergyRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Joules of a stretch of time by counter; a counter that this computer lacks has no key.
    ``timestamp``: seconds since 1970; ``duration``: seconds."""

    timestamp: float
    tag: str
    duration: float
    package: float | None = None
    core: float | None = None
    dram: float | None = None
    gpu: float | None = None
    joules_per_frame: float | None

    def joules(self, counter: str) -> float | None:
        value: float | None = getattr(self, counter)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyFacts:
    """``rows``: the idle seconds as they were, and the run without the idle power. ``samples``: the
    same over time, idle power included."""

    rows: Sequence[EnergyRow]
    samples: Sequence[EnergyRow] = ()
    joules_per_frame: float | None
    frames_per_joule: float | None
    idle_watts: Mapping[str, float]
    counters: Sequence[str]
    slowdown: float


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """A function under cProfile. ``total_s`` includes what it calls."""

    function: str
    calls: Count
    self_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """``functions``: longest self time first. ``folded``: self seconds by room and library.
    ``tree``: pyinstrument's text, None where it is not installed."""

    functions: Sequence[FunctionTime]
    folded: Mapping[str, float]
    tree: str | None = None
    slowdown: float


@dataclass(frozen=True, slots=True)
class CountersFacts:
    """The processor's counters by event. ``ipc``: instructions a cycle."""

    counts: Mapping[str, float]
    ipc: float | None
    cache_miss_rate: float | None
    instructions_per_frame: float | None
    includes: str
    slowdown: float


# moments: what the computer did at each frame of the plain run


@dataclass(frozen=True, slots=True)
class ThreadMoments:
    """Milliseconds on a core, and ready without one, since the moment before."""

    cpu_ms: Sequence[float]
    ready_ms: Sequence[float]


@dataclass(frozen=True, slots=True)
class Collection:
    """A garbage collection of Python, by the clock of the spans."""

    start_ns: int
    end_ns: int
    generation: int


@dataclass(frozen=True, slots=True)
class MomentsFacts:
    """A row for each written frame (at ``at_ns`` of the spans' clock): events since the row before,
    or ``began_ns``. ``threads``: as the spans name them; all libraries': ``library``. ``faults``,
    ``disk_faults``: the process's page faults since the row before, all and those with a disk read.
    ``mhz``: the mean clock of the cores; empty if unknown. ``keys``: the key frames of the source;
    null if unknown. ``cost_us``: a row's median cost; ``slowdown``: of the run by all rows, from 1
    on."""

    began_ns: int
    frames: Sequence[int]
    at_ns: Sequence[int]
    threads: Mapping[str, ThreadMoments]
    faults: Sequence[int]
    disk_faults: Sequence[int]
    mhz: Sequence[float]
    collections: Sequence[Collection]
    cost_us: float
    slowdown: float
    keys: Sequence[int] | None = None

    def __post_init__(self) -> None:
        times = [each for one in self.threads.values() for each in (one.cpu_ms, one.ready_ms)]
        sizes = {len(each) for each in (self.frames, self.faults, self.disk_faults, *times)}
        if {*sizes, len(self.mhz or self.at_ns)} != {len(self.at_ns)}:
            raise ValueError("the columns of moments differ in length")


FACTS: dict[str, type[Any]] = {
    "loop": LoopFacts,
    "critical_path": CriticalPathFacts,
    "what_if": WhatIfFacts,
    "frames": FramesFacts,
    "layers": LayersFacts,
    "roofline": RooflineFacts,
    "torch": TorchFacts,
    "device": DeviceFacts,
    "python": PythonFacts,
    "memory": MemoryFacts,
    "energy": EnergyFacts,
    "counters": CountersFacts,
    "moments": MomentsFacts,
}
"""Pass -> the type that its file is read as. Facts of any other pass are read as a dict."""


# passes/NAME.json: the facts, and how the pass went


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """One file. ``facts``: as in FACTS, None where ``available`` is False for the ``reason``.
    ``undisturbed``: why the pass slowed nothing down, of passes that ran nothing under a profiler.
    ``seconds``: how long the pass took. ``ran``: what ran the network meanwhile."""

    available: bool
    reason: str | None = None
    facts: Any = None
    undisturbed: str | None = None
    seconds: float | None = None
    ran: Ran | None = None

    @property
    def slowdown(self) -> float | None:
        """Time under the pass over time without it; None of a pass that disturbs nothing."""
        if isinstance(self.facts, dict):
            return self.facts.get("slowdown")
        return getattr(self.facts, "slowdown", None)

    def as_builtins(self) -> dict[str, Any]:
        document: dict[str, Any] = {"available": self.available, "reason": self.reason}
        if self.facts is not None:
            document |= to_builtins(self.facts)
        if self.undisturbed is not None:
            document["undisturbed"] = self.undisturbed
        if self.seconds is not None:
            document["seconds"] = self.seconds
        if self.ran is not None:
            document["ran"] = to_builtins(self.ran)
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class PassHeader:
    """The keys of every file besides the facts; and ``slowdown``, a fact that any pass may have."""

    available: bool
    reason: str | None = None
    undisturbed: str | None = None
    seconds: Duration | None = None
    ran: Ran | None = None
    slowdown: float | None = None


def read_pass(path: Path) -> PassRecord:
    """Read a pass. Raises UsageError if the file is not a pass's, or lacks a fact."""
    try:
        return pass_record(parse_json(read_file(path), path), path)
    except UsageError as error:
        raise _damage_error(str(error)) from error


def pass_record(content: Any, path: Path) -> PassRecord:
    header = from_builtins(content, PassHeader, path)
    if not header.available:
        return PassRecord(available=False, reason=header.reason, seconds=header.seconds)
    kind = FACTS.get(path.stem)
    if kind is None:
        own = PassHeader.__dataclass_fields__.keys() - {"slowdown"}
        facts: Any = {key: value for key, value in content.items() if key not in own}
    else:
        facts = from_builtins(content, kind, path)
    return PassRecord(
        available=True,
        reason=header.reason,
        facts=facts,
        undisturbed=header.undisturbed,
        seconds=header.seconds,
        ran=header.ran,
    )


def pass_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of passes/NAME.json: the facts are required where the pass was available."""
    header, facts = json_schema(PassHeader), json_schema(FACTS[name])
    ran = {"properties": {"available": {"const": True}}}
    return {
        "allOf": [{"$ref": header["$ref"]}, {"if": ran, "then": {"$ref": facts["$ref"]}}],
        "$defs": header["$defs"] | facts["$defs"],
    }


def find_facts(records: Mapping[str, PassRecord], kind: type[Facts]) -> Facts | None:
    for record in records.values():
        if isinstance(record.facts, kind):
            return record.facts
    return None


def _damage_error(said: str) -> UsageError:
    return UsageError(f"{said}; run that pass again, or delete the file")
