"""The facts that each pass of ``profile`` writes to a session, as passes/NAME.json.

The package ``profile`` measures the facts, ``session`` writes and reads them, and ``analysis`` and
``report`` use them. A field is a JSON key of the same name. Sessions of earlier versions may lack
the keys that have a default. Times end in ``_ms`` or ``_s``; shares are fractions of 1.
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
from detector.core.session.measured import Interval
from detector.lab.session.network import DeviceFacts, LayersFacts, RooflineFacts, TorchFacts

Facts = TypeVar("Facts")

# Fields of Execution in which a pass must equal the run, unless its ``varies`` lists the field.
PINNED = ("engine", "precision", "threads", "concurrency", "batch", "model_input")


# The execution of every pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How the network ran. Figures of different executions cannot be compared.

    ``threads``: threads of one request. ``model_input``: height, width. Fields with a default are
    None if the network ran alone, without a loop and a source.
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
        """Return the fields that are known in both executions and have different values."""
        pairs = {
            one.name: (getattr(self, one.name), getattr(other, one.name)) for one in fields(self)
        }
        return [name for name, (a, b) in pairs.items() if None not in (a, b) and a != b]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The executions of a pass. ``execution``: that of the plain run. ``measured``: the distinct
    executions that the pass measured; empty if nothing ran again. ``on_purpose``: fields that the
    pass varies by design. ``differs_in``: all fields that differed. ``text``: a summary, such
    as "openvino int8, like the run"."""

    execution: Execution
    measured: Sequence[Execution] = ()
    on_purpose: Sequence[str] = ()
    differs_in: Sequence[str] = ()
    text: str


# The loop: the passes loop, critical_path, frames and what_if


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """The cost of the instruments (the loop's timers). ``off_ms``, ``on_ms``: milliseconds per
    frame in each round without and with them. ``instruments``: their share of a frame's time.
    ``warning``: set if this share is too large."""

    off_ms: Sequence[float]
    on_ms: Sequence[float]
    instruments: Interval
    warning: str | None
    slowdown: float


@dataclass(frozen=True, slots=True)
class PathStage:
    """A stage's part of the critical path. ``share``: the stage's work and waits / whole path.
    ``wait_causes``: cause -> seconds, longest first."""

    name: str
    share: Amount
    self_s: Duration
    wait_s: Duration
    calls: Count
    wait_causes: Mapping[str, Duration]


@dataclass(frozen=True, slots=True)
class CriticalPathFacts:
    """The steady state took ``wall_s`` for ``frames`` written frames. The shares of ``stages`` add
    up to 1. Start-up and tear-down are not included."""

    wall_s: Duration
    startup_s: Duration
    teardown_s: Duration
    frames: Count
    stages: Sequence[PathStage]


@dataclass(frozen=True, slots=True)
class SlowFrame:
    """One of the slowest frames. ``stage``: its longest stage. ``file``: picture in the session."""

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
    """A change, described by ``how``, compared with the unchanged run. ``stage``: the replaced
    stage; None if the loop changed. ``fps_ratio``, ``frame_ratio``: FPS and time per frame, divided
    by the mean of the unchanged runs just before and after. ``fps``, ``frame_ms``: these ratios
    times the median of all unchanged runs."""

    change: str
    stage: str | None = None
    how: str
    fps: Interval
    frame_ms: Interval
    fps_ratio: Interval
    frame_ratio: Interval

    @property
    def helps(self) -> bool:
        """Return whether every round was faster with the change. If not, the gain may be noise."""
        return self.fps_ratio.low > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfFacts:
    """``changes``: the largest median gain first. ``frames``: each run processed this many frames,
    from the source's start. ``rounds``: rounds of each change. ``fps``, ``frame_ms``: intervals
    over all unchanged runs. ``not_measured``: change -> why. ``doubts``: why the figures are
    unreliable."""

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


# The run's resources: memory, energy, python and counters


@dataclass(frozen=True, slots=True)
class MemorySample:
    t_s: float
    rss_mb: Amount


class GpuMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPU's highest memory use during the run. If not ``available``, only ``reason`` is set.
    ``used_mb``: use by all processes. ``process_mb``: use by this process, if NVML reports it.
    ``total_mb``: size of the GPU's memory."""

    available: bool
    reason: str | None = None
    used_mb: float | None = None
    process_mb: float | None = None
    total_mb: float | None = None
    torch_peak_allocated_mb: float | None = None
    torch_peak_reserved_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Resident memory. ``slope_mb_per_1000_frames``: its growth; if this is None, ``slope_reason``
    says why. ``parts_mb``: MB that each part adds to the peak of a run of at most 100 frames."""

    slope_mb_per_1000_frames: float | None
    slope_reason: str | None
    start_mb: Amount
    peak_mb: Amount
    parts_mb: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[MemorySample]
    gpu: GpuMemory | None = None
    slowdown: float


class EnergyRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The joules of each energy counter in an interval: it began at ``timestamp`` (seconds since
    1970) and took ``duration`` seconds. Counters that this computer lacks have no key."""

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
    """``rows``: energy of the idle period, and of the run after subtracting idle power.
    ``samples``: energy over time, in the idle period and the run; idle power is included."""

    rows: Sequence[EnergyRow]
    samples: Sequence[EnergyRow] = ()
    joules_per_frame: float | None
    frames_per_joule: float | None
    idle_watts: Mapping[str, float]
    counters: Sequence[str]
    slowdown: float


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """A function under cProfile. ``total_s`` includes its callees."""

    function: str
    calls: Count
    self_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """``functions``: longest self time first. ``folded``: self seconds by package or library.
    ``tree``: pyinstrument's call tree as text; None if it is not installed."""

    functions: Sequence[FunctionTime]
    folded: Mapping[str, float]
    tree: str | None = None
    slowdown: float


@dataclass(frozen=True, slots=True)
class CountersFacts:
    """The processor's counters by event. ``ipc``: instructions per cycle."""

    counts: Mapping[str, float]
    ipc: float | None
    cache_miss_rate: float | None
    instructions_per_frame: float | None
    includes: str
    slowdown: float


# The state of the computer at each frame of the plain run


@dataclass(frozen=True, slots=True)
class ThreadMoments:
    """A thread's times since the previous row of MomentsFacts: ms on a core, ms waiting for one."""

    cpu_ms: Sequence[float]
    ready_ms: Sequence[float]


@dataclass(frozen=True, slots=True)
class Collection:
    """A garbage collection of Python, timed by the spans' clock."""

    start_ns: int
    end_ns: int
    generation: int


@dataclass(frozen=True, slots=True)
class MomentsFacts:
    """A row for each written frame, recorded at ``at_ns`` on the spans' clock. The first row covers
    the time since ``began_ns``. ``threads``: thread's name in the spans -> times; ``library``: sums
    of all threads of libraries. ``faults``: page faults of the process since the previous row;
    ``disk_faults``: those that read from disk. ``mhz``: mean clock of the cores; empty if unknown.
    ``keys``: key frames of the source; null if unknown. ``cost_us``: median cost of a row.
    ``slowdown``: time of the run with the rows / without them."""

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
"""Pass -> the type of its facts. Facts of any other pass are a dict."""


# The file passes/NAME.json: the facts and the result of the pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """A file passes/NAME.json. ``facts``: of the type in FACTS. If not ``available``, ``facts`` is
    None, and ``reason`` says why. ``undisturbed``: the reason if the pass did not slow the run;
    None if it did. ``seconds``: duration of the pass. ``ran``: the executions of the pass."""

    available: bool
    reason: str | None = None
    facts: Any = None
    undisturbed: str | None = None
    seconds: float | None = None
    ran: Ran | None = None

    @property
    def slowdown(self) -> float | None:
        """Return a run's time under the pass / without it; None if the pass slows nothing down."""
        if isinstance(self.facts, dict):
            return self.facts.get("slowdown")
        return getattr(self.facts, "slowdown", None)

    def as_builtins(self) -> dict[str, Any]:
        header = {"available": self.available, "reason": self.reason}
        optional = {"undisturbed": self.undisturbed, "seconds": self.seconds, "ran": self.ran}
        stated = {key: value for key, value in optional.items() if value is not None}
        return {**header, **to_builtins(self.facts or {}), **to_builtins(stated)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassHeader:
    """The keys of every file. The only fact among them is ``slowdown``, which any pass may have."""

    available: bool
    reason: str | None = None
    undisturbed: str | None = None
    seconds: Duration | None = None
    ran: Ran | None = None
    slowdown: float | None = None


def read_pass(path: Path) -> PassRecord:
    """Read a file of passes/. Raises UsageError if it is damaged or lacks a fact."""
    try:
        return parse_pass(parse_json(read_file(path), path), path)
    except UsageError as error:
        raise UsageError(f"{error}; run that pass again, or delete the file") from error


def parse_pass(content: Any, path: Path) -> PassRecord:
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
    """Return the JSON Schema of passes/NAME.json. If ``available``, the facts are required."""
    header, facts = json_schema(PassHeader), json_schema(FACTS[name])
    ran = {"properties": {"available": {"const": True}}}
    return {
        "allOf": [{"$ref": header["$ref"]}, {"if": ran, "then": {"$ref": facts["$ref"]}}],
        "$defs": header["$defs"] | facts["$defs"],
    }
